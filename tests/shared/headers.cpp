// Precompiles headers.h, for all tests.
int main() {}
