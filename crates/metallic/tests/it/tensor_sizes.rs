//! Eager tensors of sizes that no machine has, of none at all, and of more than goes at a time.

use metallic::core;
use metallic::tensor::{Choice, DType, Error, Mask, OpenDevice, Rope, RopePairs, Sdpa, Tensor, TensorError};

use crate::tensor_support::{close, devices, from, numbers};

#[test]
fn sizes_beyond_counting_are_refused_before_anything_is_made() {
    let too_large = |made: Result<Tensor, Error>| {
        let error = made.unwrap_err();
        assert!(matches!(error, Error::Invalid(TensorError::TooLarge { .. })), "{error}");
    };
    for device in &devices() {
        for shape in [&[usize::MAX, 2][..], &[usize::MAX], &[1 << 62], &[1 << 40, 1 << 40]] {
            for dtype in [DType::F32, DType::U32, DType::I32] {
                too_large(Tensor::zeros(device, dtype, shape));
            }
            too_large(Tensor::full(device, DType::F32, shape, 2.0));
            too_large(Tensor::rand(device, DType::F32, shape, 1));
            too_large(Tensor::randn(device, DType::F32, shape, 1));
            too_large(Tensor::from_slice(device, &[0.0f32], shape));
            too_large(Tensor::from_bytes(device, DType::F32, shape, &[0; 4]));
        }
        let one = from(device, &[1.0], &[1, 1]);
        too_large(one.broadcast_to([usize::MAX, 2]));
        too_large(one.broadcast_to([1, 1 << 62]).unwrap().relu());
        let (tall, wide) = (one.broadcast_to([1 << 40, 1]).unwrap(), one.broadcast_to([1, 1 << 40]).unwrap());
        too_large(tall.matmul(&wide));
        too_large((&tall + &wide).tensor());
    }
}

/// Whether something was refused for want of memory, or because a GPU counts in 32 bits.
fn refused<T>(device: &OpenDevice, what: &str, made: Result<T, Error>) {
    let error = made.err().unwrap_or_else(|| panic!("{what} on {device:?}"));
    let counted = matches!(error, Error::Device(core::BackendError::Unsupported { device: "soft", .. }));
    let full = matches!(error, Error::Device(core::BackendError::OutOfMemory { .. }));
    assert!(full || counted, "{what} on {device:?}: {error}");
}

#[test]
fn what_no_memory_holds_is_refused_however_it_is_asked_for() {
    for device in &devices() {
        for shape in [&[1 << 50][..], &[1 << 58], &[1 << 30, 1 << 28]] {
            for dtype in [DType::F32, DType::F16, DType::U32, DType::I32] {
                refused(device, "zeros", Tensor::zeros(device, dtype, shape));
            }
            for dtype in [DType::F32, DType::BF16, DType::Q8_0] {
                refused(device, "rand", Tensor::rand(device, dtype, shape, 1));
                refused(device, "randn", Tensor::randn(device, dtype, shape, 1));
            }
            refused(device, "ones", Tensor::ones(device, DType::F16, shape));
        }
        refused(device, "a region", device.allocate(usize::MAX));
        refused(device, "a region", device.allocate(1 << 58));
        // A view takes no memory. What is made from it does.
        let one = from(device, &[1.0], &[1, 1]);
        let huge = one.broadcast_to([1, 1 << 50]).unwrap();
        refused(device, "to_vec", huge.to_vec::<f32>());
        refused(device, "contiguous", huge.contiguous());
        refused(device, "to_dtype", huge.to_dtype(DType::F16));
        refused(device, "zeros_like", huge.zeros_like());
        refused(device, "ones_like", huge.ones_like());
        refused(device, "relu", huge.relu());
        refused(device, "add", (&huge + &one).tensor());
        refused(device, "scale", (&huge * 2.0).tensor());
        refused(device, "softmax", huge.softmax());
        let row = huge.select(0, 0).unwrap();
        refused(device, "rms_norm", huge.rms_norm(&row, 1e-5));
        refused(device, "layer_norm", huge.layer_norm(&row, &row, 1e-5));
        refused(device, "matmul", huge.t().unwrap().matmul(&one));
        refused(device, "a sum of products", huge.matmul(&huge.t().unwrap()));
        let rows = one.broadcast_to([16, 1 << 44]).unwrap();
        refused(device, "sums of products", rows.matmul(&rows.t().unwrap()));
        let sdpa = Sdpa { scale: 1.0, mask: Mask::Causal, softcap: None };
        let heads = one.broadcast_to([1, 1, 1 << 44]).unwrap();
        refused(device, "sdpa", heads.sdpa(&heads, &heads, sdpa, None));
        // Many long rows, each of which an index still counts.
        let logits = one.broadcast_to([1 << 18, (1 << 32) - 1]).unwrap();
        refused(device, "argmax", logits.argmax());
        refused(device, "top_k", logits.top_k(2));
        refused(device, "sample", logits.sample(&Choice::default(), None));
        let error = huge.argmax().unwrap_err().to_string();
        assert!(error.contains("rows of 1 to 4294967295 numbers"), "{error}");
    }
}

#[test]
fn nothing_is_made_of_nothing_whatever_its_other_axes() {
    for device in &devices() {
        let one = from(device, &[1.0], &[1]);
        let row = one.broadcast_to([1 << 50]).unwrap();
        let none = one.broadcast_to([1, 1 << 50]).unwrap().slice(0, ..0).unwrap();
        assert_eq!(none.shape(), [0, 1 << 50]);
        for made in [
            none.relu(),
            none.softmax(),
            none.rms_norm(&row, 1e-5),
            none.layer_norm(&row, &row, 1e-5),
            none.contiguous(),
            none.zeros_like(),
            (&none + &none).tensor(),
        ] {
            assert_eq!(numbers(&made.unwrap()), [0.0; 0]);
        }
        assert_eq!(none.matmul(&one.broadcast_to([1 << 50, 3]).unwrap()).unwrap().shape(), [0, 3]);
        let rope = Rope { head_dim: 1 << 50, pairs: RopePairs::Halves, magnitude: 1.0 };
        let positions = Tensor::zeros(device, DType::U32, [0]).unwrap();
        let freqs = one.broadcast_to([1 << 49]).unwrap();
        let turned = one.broadcast_to([1, 1, 1 << 50]).unwrap().slice(0, ..0).unwrap();
        assert_eq!(numbers(&turned.rope(rope, &positions, &freqs).unwrap()), [0.0; 0]);
        let sdpa = Sdpa { scale: 1.0, mask: Mask::Full, softcap: None };
        let items = one.broadcast_to([1 << 50, 1, 1, 1]).unwrap();
        let blind = items.slice(2, ..0).unwrap();
        assert_eq!(blind.sdpa(&items, &items, sdpa, None).unwrap().shape(), [1 << 50, 1, 0, 1]);
    }
}

#[test]
fn many_numbers_arrive_in_order() {
    for device in &devices() {
        // More than are brought to the device at a time, and no whole number of times.
        let count = (1 << 17) + 96;
        let ids: Vec<u32> = (0..count).collect();
        let tensor = Tensor::from_slice(device, &ids, [count as usize]).unwrap();
        assert_eq!(tensor.to_vec::<u32>().unwrap(), ids);
        let zeros = Tensor::zeros(device, DType::I32, [count as usize]).unwrap();
        assert!(zeros.to_vec::<i32>().unwrap().iter().all(|x| *x == 0));
        let random = numbers(&Tensor::rand(device, DType::F32, [count as usize], 3).unwrap());
        let tail = &random[1 << 16..];
        assert!(tail.iter().all(|x| *x > 0.0 && *x < 1.0) && random[..tail.len()] != *tail);
        let coarse = numbers(&Tensor::rand(device, DType::Q8_0, [count as usize / 32, 32], 3).unwrap());
        close(&coarse, &random, 0.005);
    }
}
