"""Reinforcement learning: losses, advantages, rewards, environments, curriculum, rollouts."""
