#include "isa.h"

int main() { return 0; }
