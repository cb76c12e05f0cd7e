"""Live scaling of CPU steps: a pure decision and the actuator that carries it out and proves it."""
