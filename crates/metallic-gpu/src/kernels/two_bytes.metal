// Vectors as numbers of two bytes.

// What a one is worth in each 32 columns of a token, and the sum of their numbers.
struct Block {
    float unit;
    int sum;
};

// The most that a number of two bytes is, each with a sign.
constant constexpr float MOST = 32639.0f;
// Added to a number it leaves the whole one in the lower bits.
constant constexpr float WHOLE = 12582912.0f;

// The lowest bytes of four words, or the second ones.
METAL_FUNC uint lowest_bytes(uint x, uint y, uint z, uint w) {
    return pick_bytes<0x5410>(pick_bytes<0x0040>(x, y), pick_bytes<0x0040>(z, w));
}
METAL_FUNC uint second_bytes(uint x, uint y, uint z, uint w) {
    return pick_bytes<0x5410>(pick_bytes<0x0051>(x, y), pick_bytes<0x0051>(z, w));
}

// Eight columns of 32, as upper and lower bytes: a word has two columns, and beside each the one sixteen further. And what they are as
// floats.
struct TwoBytes {
    uint2 high, low;
    Block block;
    float4 near, far;
};

// Eight columns of 32, sixteen apart, of which four lanes have a quarter each: numbers of two bytes, as fine as the greatest allows. What
// is no number, or too great for one, makes a unit that is none.
METAL_FUNC TwoBytes two_bytes(float4 near, float4 far) {
    const uint4 size = max(as_type<uint4>(near) & 0x7fffffff, as_type<uint4>(far) & 0x7fffffff);
    uint top = max(max(size.x, size.y), max(size.z, size.w));
    top = max(top, simd_shuffle_xor(top, 1));
    top = max(top, simd_shuffle_xor(top, 2));
    // Below this all is zero: its inverse is no number. Above that units may take the inverse for zero.
    const bool few = top < 0x7e800000, some = top >= 0x01000000 && few;
    const float greatest = as_type<float>(some ? top : 0x3f800000), scale = some ? MOST * inverse_of(greatest) : 0.0f;
    const uint4 one = as_type<uint4>(near * scale + WHOLE), two = as_type<uint4>(far * scale + WHOLE);
    // The upper byte is of a number that the lower one, with its sign, is taken from.
    const uint4 more = one + 128, twice = two + 128;
    TwoBytes made;
    made.low = uint2(lowest_bytes(one.x, two.x, one.y, two.y), lowest_bytes(one.z, two.z, one.w, two.w));
    made.high = uint2(second_bytes(more.x, twice.x, more.y, twice.y), second_bytes(more.z, twice.z, more.w, twice.w));
    int sum = add_bytes(made.low.y, add_bytes(made.low.x, add_bytes(made.high.y, add_bytes(made.high.x, 0)) * 256));
    sum += simd_shuffle_xor(sum, 1);
    sum += simd_shuffle_xor(sum, 2);
    const float unit = some ? greatest * (1.0f / MOST) : few ? 0.0f : NAN;
    made.near = (as_type<float4>(one) - WHOLE) * unit;
    made.far = (as_type<float4>(two) - WHOLE) * unit;
    made.block = {unit, sum};
    return made;
}
