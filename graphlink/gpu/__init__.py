"""What each GPU spent its time on, and why it was idle."""
