// Bytes as they are, for copies and fills of buffers: one thread for each unit, whatever divides places and length.

template <typename T>
kernel void transfer_copy(
    constant TransferParams& p [[buffer(0)]], device const T* from [[buffer(1)]],
    device T* to [[buffer(2)]], uint i [[thread_position_in_grid]]
) {
    if (i < p.units) to[i] = from[i];
}
template <typename T>
kernel void transfer_fill(
    constant TransferParams& p [[buffer(0)]], device T* to [[buffer(1)]],
    uint i [[thread_position_in_grid]]
) {
    if (i < p.units) to[i] = T(p.word);
}

KERNEL("transfer_copy_u32x4", transfer_copy<uint4>)
KERNEL("transfer_copy_u32", transfer_copy<uint>)
KERNEL("transfer_copy_u8", transfer_copy<uchar>)
KERNEL("transfer_fill_u32x4", transfer_fill<uint4>)
KERNEL("transfer_fill_u32", transfer_fill<uint>)
KERNEL("transfer_fill_u8", transfer_fill<uchar>)
