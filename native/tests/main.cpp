// The kernels alone, without Python: meant to run under the address and undefined-behaviour sanitisers, on every
// instruction set that the machine has. Right values come from plain loops and sorts written here. Prints a line a
// failure; exits with 1 if there was one.

#include "check.h"
#include "isa.h"
#if defined(HEADWAY_EMULATE)
#include "emulation/tables.h"
#endif

int headway_tests::failures = 0;

const std::vector<const headway::ExecKernels*>& headway_tests::exec_tables() {
    static const std::vector<const headway::ExecKernels*> tables = [] {
        std::vector<const headway::ExecKernels*> found;
        for (headway::Isa isa : headway::available_isas()) found.push_back(&headway::exec_kernels(isa));
#if defined(HEADWAY_EMULATE)
        for (const headway::ExecKernels* emulated : emulated_tables()) found.push_back(emulated);
#endif
        return found;
    }();
    return tables;
}

int main() {
    headway_tests::test_sampler();
    headway_tests::test_layers();
    headway_tests::test_attention();
    headway_tests::test_products();
    headway_tests::test_workers();
    headway_tests::test_stream();
    headway_tests::test_door();
    std::printf("%d failures on", headway_tests::failures);
    for (const headway::ExecKernels* table : headway_tests::exec_tables()) std::printf(" %s", table->name);
    std::printf("\n");
    return headway_tests::failures == 0 ? 0 : 1;
}
