"""What both SDKs share and what needs no socket: requests, answers, streams and the decisions about them."""
