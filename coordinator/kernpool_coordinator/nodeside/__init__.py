"""The side that agents see: enrolment, renewal, the link, and byte streams to a node's data plane."""
