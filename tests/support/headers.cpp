// This program does nothing. The headers that tests share are precompiled for it (LOCKSTEP_PRECOMPILED).
int main() {}
