// Vectors as halfs. A token's numbers are scaled by a power of two so that the greatest is below 512.

struct HalfScale {
    // What numbers are multiplied by, and what undoes it.
    float by, back;
};

// `top` is the greatest size of a token's numbers.
inline HalfScale half_scale(float top) {
    const uint exponent = clamp(as_type<uint>(top) >> 23, 9u, 253u);
    return {as_type<float>((262 - exponent) << 23), as_type<float>((exponent - 8) << 23)};
}
