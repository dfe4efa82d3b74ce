// Tensors and the products of Metal 4's tensor operations. Axis 0 of a tensor is the innermost: a row-major matrix [rows, columns]
// has the extents (columns, rows). Which thread has which element of a product is nobody's business but the operation's.

template <typename T>
using DeviceMatrix = tensor<device T, dextents<int, 2>, tensor_inline>;
template <typename T>
using GroupMatrix = tensor<threadgroup T, dextents<int, 2>, tensor_inline>;
