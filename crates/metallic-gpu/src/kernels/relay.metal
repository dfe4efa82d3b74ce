// What it takes at best to hand work over from kernel to kernel: a threadgroup on each core waits for the kernel before, copies what all
// of them read and what is its own into threadgroup memory, and does nothing with it. Its own comes piece by piece, a few of them at a
// time; all groups' pieces of a round lie one after another.
constant constexpr uint PIECES = 4;

kernel void relay(
    constant RelayParams& p [[buffer(0)]], device const uint4* common [[buffer(1)]], device const uint4* own [[buffer(2)]],
    device uint* out [[buffer(3)]], threadgroup uint4* shared [[threadgroup(0)]],
    uint group [[threadgroup_position_in_grid]], uint groups [[threadgroups_per_grid]],
    uint tid [[thread_index_in_threadgroup]], uint threads [[threads_per_threadgroup]]
) {
    wait_for_earlier();
    own += p.first + group * p.own;
    for (uint i = tid; i < p.common; i += threads) copy_ahead(shared + i, common + i, true);
    threadgroup uint4* last = shared;
    for (uint round = 0; round < p.rounds; round++) {
        last = shared + p.common + round % PIECES * p.own;
        for (uint i = tid; i < p.own; i += threads) copy_ahead(last + i, own + i, true);
        copies_go();
        all_copies_but<PIECES - 1>();
        own += groups * p.own;
    }
    copies_are_there();
    threadgroup_barrier(mem_flags::mem_threadgroup);
    // Of both ends, so that they are there.
    if (tid == 0) out[group] = p.common + p.own > 0 ? shared[0].x + (p.own > 0 ? last[p.own - 1].w : shared[p.common - 1].w) : group;
}
