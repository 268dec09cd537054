"""Do averaged, raw and cooled losses agree about the best learning rate and batch size?"""
