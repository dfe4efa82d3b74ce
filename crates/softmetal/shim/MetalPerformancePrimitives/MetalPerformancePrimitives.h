// Apple's tensor operations: of these, products of matrices.
#include <metal_tensor>
#include "../msl_matmul2d.h"
