"""What happens next with a sweep or a prediction, and what its status then says. Pure."""
