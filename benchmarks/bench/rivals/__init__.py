"""Programs that run beside ours: each is what a user would write with that library, tuned as it says to."""
