// see below
int main() { return 0; }
