"""What people use a lock for: a name, a job, a leader, a call that may be made twice."""
