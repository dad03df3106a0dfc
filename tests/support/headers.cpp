// Nothing: headers that tests share are precompiled for a program, and this is it (LOCKSTEP_PRECOMPILED).
int main() {}
