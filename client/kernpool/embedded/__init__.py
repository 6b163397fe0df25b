"""The embedded install: a coordinator and this machine's agent as background processes under KERNPOOL_HOME."""
