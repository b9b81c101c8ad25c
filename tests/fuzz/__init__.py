"""Coverage-guided fuzzing of the extensions in C, by libFuzzer under the address and undefined-behaviour sanitizers."""
