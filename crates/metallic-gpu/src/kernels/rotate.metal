// Rotations of pairs of elements.

constant uint INTERLEAVED [[function_constant(2)]];

// `(cos, sin)` of `position * freq` to 1e-7 at any position. The angle is kept as a fraction of a full turn in 64 bits,
// where whole turns fall off the top by themselves: a float would lose 0.01 at position 131072.
inline float2 turn(uint position, float freq) {
    const uint bits = as_type<uint>(freq);
    const uint exponent = (bits >> 23) & 0xff;
    if (exponent == 0) return float2(1.0f, 0.0f);
    // No frequency is that high: let it show.
    if (exponent > 150) return float2(as_type<float>(0x7fc00000u));
    // freq = m * 2^(exponent - 150), times 2^66 / 2π, is a number of 88 bits: `high * 2^32 + low`.
    const ulong m = (bits & 0x7fffffu) | 0x800000u;
    const ulong small = m * 0x4E441529u;
    const ulong high = m * 0xA2F9836Eu + (small >> 32);
    const ulong low = small & 0xffffffffu;
    const uint shift = 152 - exponent;
    const ulong step = shift < 32 ? (high << (32 - shift)) | (low >> shift) : shift < 96 ? high >> (shift - 32) : 0;
    const ulong fraction = step * position;
    const uint quarter = uint((fraction + (1ul << 61)) >> 62) & 3;
    const int rest = int(as_type<long>(fraction - (ulong(quarter) << 62)) >> 32);
    const float angle = float(rest) * (6.28318531f / 4294967296.0f);
    const float c = precise::cos(angle);
    const float s = precise::sin(angle);
    float2 cs = quarter & 1 ? float2(-s, c) : float2(c, s);
    if (quarter & 2) cs = -cs;
    return float2(cs.x, bits >> 31 ? -cs.y : cs.y);
}

// Where the two elements of a pair lie; element `i` is one of them.
inline uint2 pair_of(uint i, uint pairs) {
    if (INTERLEAVED) return uint2(i & ~1u, i | 1);
    const uint first = i < pairs ? i : i - pairs;
    return uint2(first, first + pairs);
}

// Element `i` after the rotation, of the elements `x` and `y` of its pair.
inline float rotated(float x, float y, uint i, uint2 pair, float2 cs, float magnitude) {
    return (i == pair.x ? x * cs.x - y * cs.y : x * cs.y + y * cs.x) * magnitude;
}
