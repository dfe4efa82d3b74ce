// Whole rows of weights as numbers.

constant uint DECODE_TYPE [[function_constant(0)]];

// One thread per octet of a row; a row of threadgroups per row.
kernel void decode_rows(
    constant DecodeParams& p [[buffer(0)]], device const uchar* w [[buffer(1)]], device float* out [[buffer(2)]],
    uint2 at [[thread_position_in_grid]]
) {
    const uint col = at.x * 8;
    if (col >= p.cols) return;
    const Eight v = decode8(DECODE_TYPE, w + at.y * row_bytes(DECODE_TYPE, p.cols), col, p.cols);
    device float* row = out + ulong(at.y) * p.cols + col;
    for (uint i = 0; i < min(8u, p.cols - col); i++) row[i] = i < 4 ? v.lo[i] : v.hi[i - 4];
}
