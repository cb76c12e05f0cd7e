"""One Triton pod: client, probe, and a server on this machine."""
