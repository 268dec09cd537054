"""What a sweep costs against what its answer loses."""
