#include "check.h"

void headway_tests::test_attention() {}
