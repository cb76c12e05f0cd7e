"""Knobs chosen by measurement: profile, prediction, choice and proof on a real server; and a simulator of control laws under load."""
