// Up to three matrices side by side, and what is done with the vectors they are multiplied with and with the products.

// Constants 0 to 2 are those of the cache and of rotations.
constant uint WEIGHT0 [[function_constant(3)]];
constant uint WEIGHT1 [[function_constant(4)]];
constant uint WEIGHT2 [[function_constant(5)]];
constant uint WITH_NORM [[function_constant(6)]];
constant uint WITH_BIAS [[function_constant(7)]];
constant uint WITH_RESIDUAL [[function_constant(8)]];
constant uint WITH_GATE [[function_constant(9)]];
constant uint GATE [[function_constant(10)]];

// Squares are of x times this power of two: none overflows below 1e28, and none that an epsilon leaves visible vanishes.
constant constexpr float UNIT = 9.313225746154785e-10f;

struct Matrices {
    device const uchar* w0;
    device const uchar* w1;
    device const uchar* w2;
    device const float* bias0;
    device const float* bias1;
    device const float* bias2;

    uint type_of(uint part) const {
        return part == 0 ? WEIGHT0 : part == 1 ? WEIGHT1 : WEIGHT2;
    }
    // One by one: a choice between members is one of addresses, for which compilers put all of them into memory.
    METAL_FUNC device const uchar* weight_of(uint part) const {
        if (part == 0) return w0;
        if (part == 1) return w1;
        return w2;
    }
    METAL_FUNC device const float* bias_of(uint part) const {
        if (part == 0) return bias0;
        if (part == 1) return bias1;
        return bias2;
    }
};

// Rows of a matrix.
METAL_FUNC uint rows_of(constant ProjectParams& p, uint part) {
    const uint rows0 = p.rows0, rows1 = p.rows1, rows2 = p.rows2;
    return part == 0 ? rows0 : part == 1 ? rows1 : rows2;
}

// What a simdgroup, or a threadgroup, has of matrices that stand side by side.
struct Tile {
    // The matrix.
    uint part;
    // Rows of the matrices before.
    uint before;
    // Its rows begin in this place, and there are so many; none where there is nothing to do.
    uint2 places;
};

// The tile of this number, of `each` rows, among so many matrices, 1 or 3.
METAL_FUNC Tile tile_of(constant ProjectParams& p, uint tile, uint each, uint matrices) {
    const uint rows0 = p.rows0, rows1 = p.rows1, rows2 = p.rows2;
    const uint tiles0 = (rows0 + each - 1) / each, tiles1 = (rows1 + each - 1) / each;
    const bool past0 = matrices > 1 && tile >= tiles0, past1 = past0 && tile - tiles0 >= tiles1;
    const uint rows = past1 ? rows2 : past0 ? rows1 : rows0;
    const uint row = (tile - (past1 ? tiles0 + tiles1 : past0 ? tiles0 : 0)) * each;
    return {
        uint(past0) + uint(past1), past1 ? rows0 + rows1 : past0 ? rows0 : 0,
        uint2(row, row < rows ? min(each, rows - row) : 0)};
}
