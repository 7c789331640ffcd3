"""What people take a lock for: a name of their own, a job, a leader, a call that may be made twice."""
