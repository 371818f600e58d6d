"""Learning-rate schedules: pure functions of the step."""
