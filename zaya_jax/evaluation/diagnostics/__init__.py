"""What a checkpoint looks like from inside: router load, experts, sampler, long contexts."""
