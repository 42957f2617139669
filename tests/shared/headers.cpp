// Precompiles headers.h for all tests.
