// Bytes as they are, for copies and fills of buffers: one thread for each unit, whatever divides places and length.

#define TRANSFER(T, TRANSFER_COPY, TRANSFER_FILL)                                                                \
    kernel void TRANSFER_COPY(                                                                                   \
        constant TransferParams& p [[buffer(0)]], device const T* from [[buffer(1)]],                            \
        device T* to [[buffer(2)]], uint i [[thread_position_in_grid]]                                           \
    ) {                                                                                                          \
        if (i < p.units) to[i] = from[i];                                                                        \
    }                                                                                                            \
    kernel void TRANSFER_FILL(                                                                                   \
        constant TransferParams& p [[buffer(0)]], device T* to [[buffer(1)]],                                    \
        uint i [[thread_position_in_grid]]                                                                       \
    ) {                                                                                                          \
        if (i < p.units) to[i] = T(p.word);                                                                      \
    }

TRANSFER(uint4, transfer_copy_u32x4, transfer_fill_u32x4)
TRANSFER(uint, transfer_copy_u32, transfer_fill_u32)
TRANSFER(uchar, transfer_copy_u8, transfer_fill_u8)
