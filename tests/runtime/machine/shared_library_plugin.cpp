// The library that shared_library_test.cpp opens.
extern "C" int lockstep_test_answer(int question) {
  return question + 2;
}
