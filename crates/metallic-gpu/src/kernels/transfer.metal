// Bytes as they are, for copies and fills of buffers: one thread for each unit, whatever divides places and length.

#define TRANSFER(T, NAME)                                                                                        \
    kernel void transfer_copy_##NAME(                                                                            \
        constant TransferParams& p [[buffer(0)]], device const T* from [[buffer(1)]],                            \
        device T* to [[buffer(2)]], uint i [[thread_position_in_grid]]                                           \
    ) {                                                                                                          \
        if (i < p.units) to[i] = from[i];                                                                        \
    }                                                                                                            \
    kernel void transfer_fill_##NAME(                                                                            \
        constant TransferParams& p [[buffer(0)]], device T* to [[buffer(1)]],                                    \
        uint i [[thread_position_in_grid]]                                                                       \
    ) {                                                                                                          \
        if (i < p.units) to[i] = T(p.word);                                                                      \
    }

TRANSFER(uint4, u32x4)
TRANSFER(uint, u32)
TRANSFER(uchar, u8)
