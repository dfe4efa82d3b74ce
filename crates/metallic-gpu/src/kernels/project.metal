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
    device const uchar* weight_of(uint part) const {
        return part == 0 ? w0 : part == 1 ? w1 : w2;
    }
    device const float* bias_of(uint part) const {
        return part == 0 ? bias0 : part == 1 ? bias1 : bias2;
    }
};

// Rows of a matrix.
inline uint rows_of(constant ProjectParams& p, uint part) {
    return part == 0 ? p.rows0 : part == 1 ? p.rows1 : p.rows2;
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

// The tile of this number, of `each` rows, among so many matrices.
inline Tile tile_of(constant ProjectParams& p, uint tile, uint each, uint matrices) {
    Tile found = {0, 0, uint2(0)};
    while (found.part + 1 < matrices && tile >= (rows_of(p, found.part) + each - 1) / each) {
        tile -= (rows_of(p, found.part) + each - 1) / each;
        found.before += rows_of(p, found.part);
        found.part++;
    }
    const uint rows = rows_of(p, found.part), row = tile * each;
    found.places = uint2(row, row < rows ? min(each, rows - row) : 0);
    return found;
}
