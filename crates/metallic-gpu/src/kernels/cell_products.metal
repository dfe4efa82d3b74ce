// What products with matrices in cells are written to. With a gate, the first tile of a pair is the gate's and the second that of the
// matrix it gates.

struct Products {
    constant ProjectParams& p;
    Matrices m;
    device const float* residual;
    device float* out;
    // The first token of these threadgroups.
    uint token;

    METAL_FUNC Tile at(uint pair) const {
        return tile_of(p, pair, WITH_GATE != 0 ? CELL_ROWS : PAIR_ROWS, WITH_GATE != 0 ? 1 : 3);
    }

    template <typename W>
    METAL_FUNC Tiles tiles(uint pair) const {
        const ulong bytes = W::bytes(cells_of(p.cols));
        const Tile tile = at(pair);
        const ulong before = tile.places.x / CELL_ROWS * bytes;
        if (WITH_GATE != 0) return {m.w0 + before, m.w1 + before};
        // A second tile that is not there is the first one again, and thrown away.
        device const uchar* one = m.weight_of(tile.part) + before;
        return {one, one + (tile.places.y > CELL_ROWS ? bytes : 0)};
    }

    METAL_FUNC uint width() const { return WITH_GATE != 0 ? p.rows0 : p.rows0 + p.rows1 + p.rows2; }

    // What is added to the first token's result: it comes while the products are made.
    struct Beside {
        float residual;
    };
    METAL_FUNC Beside early(uint, uint) const { return {0.0f}; }
    METAL_FUNC void meanwhile(thread Beside&) const {}
    METAL_FUNC void late(thread Beside& beside, uint pair, uint lane) const {
        if (WITH_RESIDUAL == 0) return;
        const Tile tile = at(pair);
        if (lane < tile.places.y) beside.residual = residual[ulong(token) * width() + tile.before + tile.places.x + lane];
    }

    template <uint TOKENS>
    METAL_FUNC void finish(
        uint pair, Inputs in, Results r, Parts parts, Beside first, uint lane
    ) const {
        const Tile tile = at(pair);
        const uint row = tile.places.x, count = tile.places.y;
        for (uint i = lane; i < count * in.tokens; i += SIMD) {
            const uint t = in.tokens > 1 ? i / count : 0, r0 = i - t * count;
            const ulong to = ulong(token + t) * width() + tile.before + row + r0;
            const float beside = WITH_RESIDUAL == 0 ? 0.0f : i == lane && t == 0 ? first.residual : residual[to];
            float y = result_of<TOKENS>(r, parts, r0, t);
            if (WITH_BIAS != 0) y += m.bias_of(tile.part)[row + r0];
            if (WITH_GATE != 0) {
                float gated = result_of<TOKENS>(r, parts, CELL_ROWS + r0, t);
                if (WITH_BIAS != 0) gated += m.bias1[row + r0];
                y = activate(GATE, y) * gated;
            }
            out[to] = WITH_RESIDUAL != 0 ? y + beside : y;
        }
    }
};
