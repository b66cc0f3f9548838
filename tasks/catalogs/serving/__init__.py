"""What engines compute beside plain attention: operations of serving, each by itself."""
