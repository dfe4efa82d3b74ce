//! The eager tensors, on every device that any machine has.

use std::sync::Arc;

use crate::tensor_support::{close, devices, from, numbers};
use metallic::core;
use metallic::tensor::{
    Binary, Choice, DType, Error, Mask, OpenDevice, Rope, RopePairs, Sdpa, Tensor, TensorError, Unary, View,
};

fn counting(device: &OpenDevice, shape: &[usize]) -> Tensor {
    let values: Vec<f32> = (0..shape.iter().product::<usize>()).map(|i| i as f32).collect();
    from(device, &values, shape)
}

#[test]
fn tensors_are_made_of_one_number_of_another_or_of_a_slice() {
    for device in devices() {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let half = Tensor::full(&device, dtype, [2, 3], 0.5).unwrap();
            assert_eq!((half.dtype(), half.shape(), numbers(&half)), (dtype, &[2, 3][..], vec![0.5; 6]));
            assert_eq!(numbers(&half.zeros_like().unwrap()), [0.0; 6]);
            assert_eq!(numbers(&half.ones_like().unwrap()), [1.0; 6]);
            assert_eq!(numbers(&half.full_like(-2.0).unwrap()), [-2.0; 6]);
        }
        let ids = Tensor::zeros(&device, DType::U32, [3]).unwrap();
        assert_eq!(ids.to_vec::<u32>().unwrap(), [0; 3]);
        let signed = Tensor::from_slice(&device, &[-1i32, 7], [2]).unwrap();
        assert_eq!(signed.to_vec::<i32>().unwrap(), [-1, 7]);
        let one = Tensor::full(&device, DType::F32, [], 4.0).unwrap();
        assert_eq!((one.shape(), one.item::<f32>().unwrap()), (&[][..], 4.0));
        let none = Tensor::zeros(&device, DType::F32, [0, 3]).unwrap();
        assert_eq!(numbers(&none), [0.0; 0]);
        assert_eq!(numbers(&(&none + 1.0).tensor().unwrap()), [0.0; 0]);
    }
}

#[test]
fn random_numbers_are_the_same_everywhere_and_well_spread() {
    let devices = devices();
    let cpu = &devices[0];
    let make = |name: &str, device: &OpenDevice, seed| {
        let make = if name == "rand" { Tensor::rand } else { Tensor::randn };
        numbers(&make(device, DType::F32, [100, 100], seed).unwrap())
    };
    for name in ["rand", "randn"] {
        let a = make(name, cpu, 5);
        for device in &devices[1..] {
            assert_eq!(a, make(name, device, 5), "{name} on {device:?}");
        }
        assert_ne!(a, make(name, cpu, 6), "{name}");
        let mean = a.iter().sum::<f32>() / 1e4;
        let variance = a.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / 1e4;
        let (expected_mean, expected_variance) = if name == "rand" { (0.5, 1.0 / 12.0) } else { (0.0, 1.0) };
        assert!((mean - expected_mean).abs() < 0.03, "{name}: mean {mean}");
        assert!((variance - expected_variance).abs() < 0.05, "{name}: variance {variance}");
        if name == "rand" {
            assert!(a.iter().all(|x| *x > 0.0 && *x < 1.0));
        }
    }
    for shape in [&[2][..], &[0], &[1 << 58]] {
        let error = Tensor::rand(cpu, DType::U32, shape, 1).unwrap_err();
        assert!(matches!(error, Error::Element { found: DType::U32, .. }), "{error}");
    }
}

#[test]
fn views_share_memory_and_carry_offset_and_strides() {
    for device in devices() {
        let x = counting(&device, &[2, 3, 4]);
        let part = x.slice(2, 1..3).unwrap().slice(1, 1..).unwrap().permute([2, 0, 1]).unwrap();
        assert_eq!(
            (part.shape(), part.view().strides(), part.view().offset()),
            (&[2, 2, 2][..], &[1, 12, 4][..], 5)
        );
        assert!(Arc::ptr_eq(part.memory(), x.memory()));
        assert_eq!(numbers(&part), [5.0, 9.0, 17.0, 21.0, 6.0, 10.0, 18.0, 22.0]);
        assert_eq!(
            numbers(&x.step(2, 3).unwrap().select(0, 1).unwrap()),
            [12.0, 15.0, 16.0, 19.0, 20.0, 23.0]
        );
        let error = part.reshape([8]).unwrap_err();
        assert!(error.to_string().contains("make it contiguous first"), "{error}");
        let flat = part.contiguous().unwrap().reshape([8]).unwrap();
        assert_eq!(numbers(&flat), numbers(&part));
        // What is written to a view is seen by everyone who shares its memory.
        x.select(1, 0).unwrap().copy_from(&from(&device, &[-1.0], &[1])).unwrap();
        assert_eq!(numbers(&x)[..5], [-1.0, -1.0, -1.0, -1.0, 4.0]);
        assert_eq!(numbers(&x)[12..17], [-1.0, -1.0, -1.0, -1.0, 16.0]);
    }
}

#[test]
fn a_tensor_may_lie_anywhere_in_memory_that_exists() {
    for device in devices() {
        let memory = device.allocate(40).unwrap();
        let view = View::strided(DType::F16, 3, &[2, 2], &[1, 8]).unwrap();
        let region = Tensor::from_region(&device, memory.clone(), view).unwrap();
        region.copy_from(&counting(&device, &[2, 2])).unwrap();
        assert_eq!(numbers(&region), [0.0, 1.0, 2.0, 3.0]);
        let whole = View::contiguous(DType::F16, &[20]).unwrap();
        let all = numbers(&Tensor::from_region(&device, memory.clone(), whole).unwrap());
        assert_eq!([all[3], all[4], all[11], all[12]], [0.0, 2.0, 1.0, 3.0]);
        let beyond = View::contiguous(DType::F32, &[11]).unwrap();
        let error = Tensor::from_region(&device, memory, beyond).unwrap_err();
        assert!(
            matches!(error, Error::Invalid(TensorError::Bounds { needed: 44, found: 40, .. })),
            "{error}"
        );
    }
}

#[test]
fn operators_take_tensors_and_numbers_on_both_sides() {
    for device in devices() {
        let (a, b) = (from(&device, &[1.0, 2.0], &[2]), from(&device, &[4.0, 8.0], &[2]));
        let value = |computed: metallic::tensor::Computed| numbers(&computed.tensor().unwrap());
        assert_eq!(value(&a + &b), [5.0, 10.0]);
        assert_eq!(value(&a - &b), [-3.0, -6.0]);
        assert_eq!(value(&a * &b), [4.0, 16.0]);
        assert_eq!(value(&a / &b), [0.25, 0.25]);
        assert_eq!(value(&a + 1.0), [2.0, 3.0]);
        assert_eq!(value(&a - 1.0), [0.0, 1.0]);
        assert_eq!(value(&a * 3.0), [3.0, 6.0]);
        assert_eq!(value(&a / 2.0), [0.5, 1.0]);
        assert_eq!(value(1.0 + &a), [2.0, 3.0]);
        assert_eq!(value(1.0 - &a), [0.0, -1.0]);
        assert_eq!(value(3.0 * &a), [3.0, 6.0]);
        assert_eq!(value(2.0 / &a), [2.0, 1.0]);
        assert_eq!(value(-(&a + &b) / (2.0 * &a)), [-2.5, -2.5]);
        assert_eq!(value((a.clone() + b.clone()) * (&a - 1.0)), [0.0, 10.0]);
        assert_eq!(value(&a / 0.0), [f32::INFINITY; 2]);
    }
}

#[test]
fn a_formula_keeps_its_first_error() {
    for device in devices() {
        let (a, b) = (counting(&device, &[2]), counting(&device, &[3]));
        let halves = Tensor::ones(&device, DType::F16, [2, 2]).unwrap();
        let error = ((&a + &b) * &halves - 1.0).tensor().unwrap_err();
        assert!(error.to_string().contains("F32 [3]") && error.to_string().contains("[2]"), "{error}");
        let error = (2.0 * (&a * &halves + &b)).tensor().unwrap_err();
        let needed = "input 1 of `binary` is F16 [2, 2], it needs F32 [2, 2] or one row of it";
        assert_eq!(error.to_string(), needed);
    }
}

#[test]
fn shapes_are_broadcast_from_the_last_axis() {
    for device in devices() {
        let column = from(&device, &[10.0, 20.0], &[2, 1]);
        let row = from(&device, &[1.0, 2.0, 3.0], &[3]);
        let sum = (&column + &row).tensor().unwrap();
        assert_eq!((sum.shape(), numbers(&sum)), (&[2, 3][..], vec![11.0, 12.0, 13.0, 21.0, 22.0, 23.0]));
        let one = from(&device, &[1.0], &[]);
        assert_eq!(numbers(&(&one - &row).tensor().unwrap()), [0.0, -1.0, -2.0]);
        let deep = counting(&device, &[2, 1, 2]);
        assert_eq!(deep.binary(Binary::Mul, &counting(&device, &[3, 1])).unwrap().shape(), [2, 3, 2]);
    }
}

#[test]
fn activations_and_norms_follow_their_formulas() {
    for device in devices() {
        let x = from(&device, &[-1.0, 0.0, 2.0], &[1, 3]);
        close(&numbers(&x.silu().unwrap()), &[-0.268_941_4, 0.0, 1.761_594_2], 1e-6);
        close(&numbers(&x.gelu().unwrap()), &[-0.158_655_25, 0.0, 1.954_499_7], 1e-6);
        close(&numbers(&x.gelu_tanh().unwrap()), &[-0.158_808, 0.0, 1.954_597_7], 1e-6);
        close(&numbers(&x.relu().unwrap()), &[0.0, 0.0, 2.0], 0.0);
        close(&numbers(&x.sigmoid().unwrap()), &[0.268_941_4, 0.5, 0.880_797], 1e-6);
        close(&numbers(&x.softcap(1.0).unwrap()), &[-0.761_594_2, 0.0, 0.964_027_6], 1e-6);
        close(&numbers(&x.gated(Unary::Relu, &x).unwrap()), &[0.0, 0.0, 4.0], 0.0);
        close(&numbers(&x.softmax().unwrap()), &[0.042_010_07, 0.114_195_2, 0.843_794_7], 1e-6);
        let (w, b) = (from(&device, &[1.0, 2.0, 3.0], &[3]), from(&device, &[0.5, 0.0, 0.0], &[3]));
        close(&numbers(&x.rms_norm(&w, 0.0).unwrap()), &[-0.774_596_7, 0.0, 4.647_58], 1e-5);
        close(&numbers(&x.layer_norm(&w, &b, 0.0).unwrap()), &[-0.569_044_97, -0.534_522_5, 4.008_919], 1e-5);
        let (sum, normed) = x.add_rms_norm(&x, &w, 0.0).unwrap();
        close(&numbers(&sum), &[-2.0, 0.0, 4.0], 0.0);
        close(&numbers(&normed), &[-0.774_596_7, 0.0, 4.647_58], 1e-5);
        let (sum, normed) = x.add_layer_norm(&x, &w, &b, 0.0).unwrap();
        close(&numbers(&sum), &[-2.0, 0.0, 4.0], 0.0);
        close(&numbers(&normed), &[-0.569_044_97, -0.534_522_5, 4.008_919], 1e-5);
    }
}

#[test]
fn products_take_transposes_batches_and_quantised_weights() {
    for device in devices() {
        let (a, b) = (counting(&device, &[2, 3]), counting(&device, &[4, 3]));
        assert_eq!(
            numbers(&a.matmul(&b.t().unwrap()).unwrap()),
            [5.0, 14.0, 23.0, 32.0, 14.0, 50.0, 86.0, 122.0]
        );
        let batch = counting(&device, &[2, 1, 2, 3]);
        let y = batch.matmul(&counting(&device, &[5, 3, 4])).unwrap();
        assert_eq!(y.shape(), [2, 5, 2, 4]);
        let alone = batch.select(0, 1).unwrap().select(0, 0).unwrap();
        let alone = alone.matmul(&counting(&device, &[5, 3, 4]).select(0, 3).unwrap()).unwrap();
        assert_eq!(numbers(&y.select(0, 1).unwrap().select(0, 3).unwrap()), numbers(&alone));

        let w: Vec<f32> = (0..128).map(|i| (i % 17) as f32 - 8.0).collect();
        let mut bytes = vec![0; DType::Q8_0.bytes_for(128).unwrap()];
        core::quant::quantize(DType::Q8_0, &w, &mut bytes).unwrap();
        let quantised = Tensor::from_bytes(&device, DType::Q8_0, [2, 64], &bytes).unwrap();
        let x = counting(&device, &[3, 64]);
        let (plain, found) =
            (quantised.to_dtype(DType::F32).unwrap(), x.matmul(&quantised.t().unwrap()).unwrap());
        close(&numbers(&found), &numbers(&x.matmul(&plain.t().unwrap()).unwrap()), 0.1);
        let error = quantised.relu().unwrap_err();
        assert!(error.to_string().contains("Q8_0 [2, 64], it needs floats"), "{error}");
        let error = x.to_dtype(DType::Q8_0).unwrap_err();
        assert!(error.to_string().contains("cannot be copied to Q8_0 [3, 64]"), "{error}");
        let error = counting(&device, &[3]).matmul(&b).unwrap_err();
        assert!(error.to_string().contains("a matrix"), "{error}");
        let error = a.matmul(&b).unwrap_err();
        assert!(error.to_string().contains("input 1 of `matmul` is F32 [4, 3]"), "{error}");
    }
}

#[test]
fn a_batch_attends_as_its_items_do() {
    for device in devices() {
        let make = |heads, seed| Tensor::randn(&device, DType::F32, [3, heads, 6, 16], seed).unwrap();
        let (q, k, v) = (make(4, 1), make(2, 2), make(2, 3));
        let sinks = from(&device, &[0.0, 1.0, -1.0, 2.0], &[4]);
        let sdpa = Sdpa { scale: 0.25, mask: Mask::Window(3), softcap: Some(9.0) };
        let all = q.sdpa(&k, &v, sdpa, Some(&sinks)).unwrap();
        for item in 0..3 {
            let [q, k, v, all] = [&q, &k, &v, &all].map(|x| x.select(0, item).unwrap());
            assert_eq!(numbers(&q.sdpa(&k, &v, sdpa, Some(&sinks)).unwrap()), numbers(&all));
        }
        let error = q.sdpa(&k.select(0, 0).unwrap(), &v, sdpa, None).unwrap_err();
        assert!(error.to_string().contains("[3, kv_heads, n, 16]"), "{error}");
        let blind = Sdpa { mask: Mask::Causal, ..sdpa };
        let short = |x: &Tensor| x.slice(2, ..2).unwrap();
        let seen = numbers(&q.sdpa(&short(&k), &short(&v), blind, None).unwrap().slice(2, ..4).unwrap());
        assert!(seen.iter().all(|x| *x == 0.0));
    }
}

#[test]
fn rotation_turns_pairs_and_keeps_lengths() {
    for device in devices() {
        let x = from(&device, &[1.0, 0.0, 0.0, 2.0], &[1, 1, 4]);
        let position = Tensor::from_slice(&device, &[3u32], [1]).unwrap();
        let freqs = from(&device, &[0.5, 1.0], &[2]);
        let rope = Rope { head_dim: 4, pairs: RopePairs::Interleaved, magnitude: 1.0 };
        let turned = numbers(&x.rope(rope, &position, &freqs).unwrap());
        close(&turned, &[1.5f32.cos(), 1.5f32.sin(), -2.0 * 3f32.sin(), 2.0 * 3f32.cos()], 1e-6);
    }
}

#[test]
fn choices_take_the_lowest_of_equals_and_every_device_draws_alike() {
    let devices = devices();
    for device in &devices {
        let x = from(device, &[1.0, 5.0, 5.0, f32::NAN, 0.0, -1.0, -1.0, -2.0], &[2, 4]);
        assert_eq!(x.argmax().unwrap().to_vec::<u32>().unwrap(), [1, 0]);
        let (values, indices) = x.top_k(2).unwrap();
        assert_eq!(numbers(&values), [5.0, 5.0, 0.0, -1.0]);
        assert_eq!(indices.to_vec::<u32>().unwrap(), [1, 2, 0, 1]);
    }
    let mut drawn = Vec::new();
    for draw in 0..50 {
        let choice =
            Choice { temperature: 0.9, top_k: 20, frequency: 0.5, seed: 8, draw, ..Choice::default() };
        let of = |device: &OpenDevice| {
            let logits = Tensor::randn(device, DType::F32, [3, 500], 1).unwrap();
            let counts = Tensor::from_slice(device, &vec![1u32; 1500], [3, 500]).unwrap();
            logits.sample(&choice, Some(&counts)).unwrap().to_vec::<u32>().unwrap()
        };
        let tokens = of(&devices[0]);
        for device in &devices[1..] {
            assert_eq!(tokens, of(device), "{device:?}");
        }
        drawn.push(tokens);
    }
    drawn.sort();
    drawn.dedup();
    assert!(drawn.len() > 30, "{} different draws of 50", drawn.len());
}

#[test]
fn elements_are_read_as_what_they_are() {
    for device in devices() {
        let x = Tensor::ones(&device, DType::BF16, [2]).unwrap();
        let error = x.to_vec::<u32>().unwrap_err();
        assert!(error.to_string().contains("a tensor of BF16 has no elements of type u32"), "{error}");
        let ids = Tensor::from_slice(&device, &[1u32], [1]).unwrap();
        assert!(matches!(ids.to_vec::<f32>(), Err(Error::Element { found: DType::U32, asked: "f32" })));
        assert!(matches!(
            x.item::<f32>(),
            Err(Error::Invalid(TensorError::Count { found: 1, needed: 2, .. }))
        ));
        let error = Tensor::from_bytes(&device, DType::F32, [2], &[0; 9]).unwrap_err();
        assert!(error.to_string().contains("9 bytes"), "{error}");
        let none = Tensor::zeros(&device, DType::Q4K, [1, 256]).unwrap();
        assert_eq!(numbers(&none), [0.0; 256]);
        assert!(matches!(
            Tensor::ones(&device, DType::U32, [1]),
            Err(Error::Element { found: DType::U32, .. })
        ));
    }
}

#[test]
fn what_cannot_be_had_is_an_error() {
    for device in &devices() {
        let error = Tensor::zeros(device, DType::F32, [1; 5]).unwrap_err();
        assert!(matches!(error, Error::Invalid(TensorError::Rank { axes: 5, .. })), "{error}");
        assert!(counting(device, &[2]).transpose(0, 1).is_err());
        assert!(counting(device, &[2]).select(0, 2).is_err());
        let error = counting(device, &[2, 2]).permute([0]).unwrap_err().to_string();
        assert_eq!(error, "a permutation of [2, 2] names each of its 2 axes once; found is [0]");
    }
}

#[test]
fn tensors_of_two_devices_do_not_meet() {
    let devices = devices();
    for (here, there) in devices.iter().flat_map(|a| devices.iter().map(move |b| (a, b))) {
        if here.info().kind == there.info().kind {
            continue;
        }
        let kind = here.info().kind;
        let error = (&counting(here, &[2]) + &counting(there, &[2])).tensor().unwrap_err().to_string();
        assert_eq!(error, format!("input 1 lies in the memory of another device than {kind}"));
        let view = View::contiguous(DType::F32, &[2]).unwrap();
        let error = Tensor::from_region(here, there.allocate(64).unwrap(), view).unwrap_err().to_string();
        assert_eq!(error, format!("the region lies in the memory of another device than {kind}"));
    }
}

#[test]
fn every_operation_is_counted_on_its_device() {
    for device in devices() {
        let x = Tensor::ones(&device, DType::F32, [4, 4]).unwrap();
        let before = device.stats();
        let _ = x.slice(0, 1..).unwrap().t().unwrap();
        assert_eq!(device.stats().dispatches, before.dispatches, "a view computes nothing");
        let _ = x.matmul(&x.t().unwrap()).unwrap().softmax().unwrap();
        let after = device.stats();
        assert_eq!(after.dispatches, before.dispatches + 2);
        assert_eq!(after.bytes_written - before.bytes_written, 2 * 64);
        let row = Tensor::ones(&device, DType::F32, [1, 4]).unwrap();
        let _ = (&x + &row).tensor().unwrap();
        assert_eq!(device.stats().dispatches, after.dispatches + 1, "one row serves all as it is");
    }
}

#[test]
fn threads_that_read_and_write_the_same_tensors_do_not_wait_for_one_another_forever() {
    for device in devices() {
        let tensors: Vec<Tensor> =
            (0..3).map(|_| Tensor::zeros(&device, DType::F32, [64]).unwrap()).collect();
        std::thread::scope(|scope| {
            for shift in 0..3 {
                let tensors = &tensors;
                scope.spawn(move || {
                    for round in 0..200 {
                        let (from, to) = (&tensors[(shift + round) % 3], &tensors[(shift + round + 1) % 3]);
                        to.copy_from(from).unwrap();
                    }
                });
            }
        });
        assert_eq!(numbers(&tensors[0]), [0.0; 64]);
    }
}
