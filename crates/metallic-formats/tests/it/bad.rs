//! Malformed files are refused with a message that fits; see `../data/bad/README.md`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use metallic_formats::{FormatError, Gguf, SafeTensors};

/// Name and a part of the refusal.
const REFUSED: &[(&str, &str)] = &[
    ("alignment_0.gguf", "key `general.alignment` is u32 0, needed a power of two"),
    ("alignment_2p31.gguf", "key `general.alignment` is u32 2147483648, needed a power of two"),
    ("array_elem_type_99.gguf", "key `x.arr` is an array of type id 99, needed"),
    ("array_len_2p60_str.gguf", "key `a.b` is 1152921504606846976, needed at most 8"),
    ("array_len_2p60_u8.gguf", "key `a.b` is 1152921504606846976, needed at most 64"),
    ("array_nested_10k.gguf", "key `a.b` is an array of arrays, needed"),
    ("bool_7.gguf", "key `tokenizer.ggml.add_bos_token` is a bool stored as 7, needed 0 or 1"),
    ("dims_embd_rows.gguf", "needed 8384 or more, where tensor `token_embd.weight` ends"),
    ("dims_overflow_u64.gguf", "`blk.0.attn_q.weight`: the shape is [8589934592, 8589934592]"),
    ("dims_overflow_wraps_to_valid.gguf", "`blk.0.attn_q.weight`: the shape is [2, 9223372036854775816]"),
    ("dims_zero.gguf", "`blk.0.attn_q.weight`: an axis is 0, needed 1 or more"),
    ("fuzz_meta_0.gguf", "ends inside entry 31 of the array in metadata key `tokenizer.ggml.tokens`"),
    ("fuzz_meta_2.gguf", "key `llama.rope.dimension_count` is of type id 16777220, needed"),
    ("fuzz_meta_4.gguf", "ends inside entry 50 of the array in metadata key `tokenizer.ggml.tokens`"),
    ("fuzz_meta_6.gguf", "entry 64 of the array in metadata key `tokenizer.ggml.tokens` is not UTF-8"),
    ("garbage_1k.gguf", "is not a GGUF file: it begins with `\\xd4C\\x0e\\xc7`, needed `GGUF`"),
    ("header_then_random.gguf", "ends inside metadata key number 0"),
    ("key_70000.gguf", "is 70000, needed at most 65535"),
    ("key_len_2p60.gguf", "ends inside metadata key number 0: 1152921504606846976 bytes needed, 84 left"),
    ("key_not_utf8.gguf", "metadata key number 1 is not UTF-8 at its byte 3 (`\\xff\\xfekey`)"),
    ("kv_count_2p60.gguf", "the metadata count is 1152921504606846976, needed at most"),
    ("kv_count_too_small.gguf", "tensor `tokenizer.ggml.merges`: the number of axes is 9, needed 1 to 4"),
    ("kv_duplicate.gguf", "metadata key `general.architecture` is there twice"),
    ("magic_swapped.gguf", "the magic is `FUGG`: big-endian, byte-swapped, needed `GGUF`, little-endian"),
    ("magic_wrong.gguf", "it begins with `GGUX`, needed `GGUF`"),
    ("n_dims_0.gguf", "`blk.0.attn_q.weight`: the number of axes is 0, needed 1 to 4"),
    ("n_dims_200.gguf", "`blk.0.attn_q.weight`: the number of axes is 200, needed 1 to 4"),
    ("tensor_count_2p60.gguf", "the tensor count is 1152921504606846976, needed at most"),
    ("tensor_duplicate_extra.gguf", "tensor `blk.0.ffn_up.weight` is there twice"),
    ("tensor_name_empty.gguf", "the name of tensor number 8 is empty"),
    ("tensor_offset_max.gguf", "the data of tensor `blk.0.attn_q.weight` at offset 18446744073709551584"),
    ("tensor_offset_misaligned.gguf", "the offset is 12321, needed a multiple of the alignment 32"),
    ("tensor_overlap_partial.gguf", "`blk.0.ffn_up.weight`: the offset is 9504, needed 10464 or more"),
    ("text_file.gguf", "it begins with `this`, needed `GGUF`"),
    ("token_not_utf8.gguf", "entry 260 of the array in metadata key `tokenizer.ggml.tokens` is not UTF-8"),
    ("trunc_after_magic.gguf", "ends inside the version: 4 bytes needed, 0 left"),
    ("trunc_empty.gguf", "ends inside the magic: 4 bytes needed, 0 left"),
    ("trunc_half_data.gguf", "ends inside the data of tensor `token_embd.weight`"),
    ("trunc_header_only.gguf", "the tensor count is 11, needed at most 0, as 8 bytes are left"),
    ("trunc_in_tensor_info.gguf", "ends inside the description of tensor `token_embd.weight`"),
    (
        "trunc_in_token_array.gguf",
        "key `tokenizer.ggml.tokens` is 261, needed at most 20, as 163 bytes are left",
    ),
    ("type_9999.gguf", "`blk.0.attn_q.weight`: type unknown (id 9999) is not supported"),
    ("type_max.gguf", "`blk.0.attn_q.weight`: type unknown (id 4294967295) is not supported"),
    ("type_q4_k_ne0_16.gguf", "the row length is 16, needed a multiple of 256"),
    (
        "value_len_2p60.gguf",
        "ends inside metadata key `general.architecture`: 1152921504606846976 bytes needed",
    ),
    ("version_0.gguf", "the GGUF version is 0, needed 2 or 3"),
    ("version_4294967295.gguf", "the GGUF version is 4294967295, needed 2 or 3"),
    ("zeros_4k.gguf", "it begins with `\\x00\\x00\\x00\\x00`, needed `GGUF`"),
    ("st_data_extra", "the data is 13120 bytes, needed 13056 bytes"),
    ("st_dtype_missing", "`model.layers.0.self_attn.q_proj.weight`: missing field `dtype`"),
    ("st_dtype_unknown", "`model.layers.0.self_attn.q_proj.weight`: the dtype is F13, needed one of F32"),
    ("st_empty", "ends inside the header length: 8 bytes needed, 0 left"),
    ("st_header_len_max", "ends inside the header: 18446744073709551615 bytes needed"),
    ("st_header_len_small", "EOF while parsing"),
    ("st_header_nested_10k", "`a`: invalid type: sequence"),
    ("st_header_not_utf8", "the header is not UTF-8 at its byte 2"),
    ("st_header_truncated", "ends inside the header: 1112 bytes needed, 556 left"),
    ("st_index_lists_absent_tensor", "needed in `model-00001-of-00001.safetensors`, where the index puts it"),
    ("st_index_not_json", "the index is not as needed: EOF"),
    ("st_index_traversal", "a file name is `../../../../etc/passwd`, needed the plain name"),
    ("st_is_gguf", "is not a safetensors file: it begins with `GGUF`"),
    ("st_offsets_missing", "`model.layers.0.self_attn.q_proj.weight`: missing field `data_offsets`"),
    ("st_offsets_out_of_range", "`model.layers.0.self_attn.q_proj.weight`: data_offsets is"),
    ("st_offsets_overlap", "where the tensor before it ends"),
    ("st_offsets_reversed", "data_offsets is [12768, 12256], needed a begin before the end"),
    ("st_shape_mismatch", "data_offsets is [12256, 12768], needed 544 bytes for BF16 [16, 17]"),
    ("st_shape_negative", "`model.layers.0.self_attn.q_proj.weight`: invalid value: integer `-16`"),
];

/// Well-formed files, with their number of tensors; what is wrong with most of them a model must find.
const LOADED: &[(&str, usize)] = &[
    ("arch_unknown.gguf", 11),
    ("block_count_0.gguf", 11),
    ("block_count_string.gguf", 11),
    ("bos_out_of_range.gguf", 11),
    ("context_length_0.gguf", 11),
    ("control_valid.gguf", 11),
    ("dims_transposed_kv.gguf", 11),
    ("embedding_length_0.gguf", 11),
    ("embedding_length_max.gguf", 11),
    ("eos_negative.gguf", 11),
    ("eps_nan.gguf", 11),
    ("ffn_length_0.gguf", 11),
    ("head_count_0.gguf", 11),
    ("head_count_kv_0.gguf", 11),
    ("head_count_negative.gguf", 11),
    ("merges_garbage.gguf", 11),
    ("missing_general_architecture.gguf", 11),
    ("missing_llama_attention_layer_norm_rms_epsilon.gguf", 11),
    ("missing_llama_context_length.gguf", 11),
    ("missing_llama_embedding_length.gguf", 11),
    ("missing_tokenizer_ggml_tokens.gguf", 11),
    ("rope_base_0.gguf", 11),
    ("rope_dim_odd.gguf", 11),
    ("tensor_count_zero.gguf", 0),
    ("tensor_missing_embd.gguf", 10),
    ("tensor_missing_output_norm.gguf", 10),
    ("tokenizer_model_unknown.gguf", 11),
    ("tokens_empty.gguf", 11),
    ("control_valid_hf", 11),
    ("st_shape_wrong_for_config", 11),
    ("st_tensor_missing", 11),
    ("st_offsets_misaligned", 12),
    ("st_weights_nan", 11),
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/bad")
}

/// Opens a file by its kind and returns how many tensors it has.
fn open(name: &str) -> Result<usize, FormatError> {
    let path = folder().join(name);
    let begin = Instant::now();
    let result = if path.extension().is_some_and(|end| end == "gguf") {
        Gguf::open(&path).map(|file| file.tensors().count())
    } else {
        SafeTensors::open(&path).map(|file| file.tensors().count())
    };
    assert!(begin.elapsed() < Duration::from_secs(1), "{name} took {:?}", begin.elapsed());
    result
}

#[test]
fn malformed_files_are_refused_with_a_fitting_message() {
    for (name, part) in REFUSED {
        let error = open(name).expect_err(name).to_string();
        assert!(error.contains(part), "{name}: `{part}` is not in: {error}");
        assert!(error.contains(name), "the file is not named in: {error}");
        assert!(!error.contains('\n') && error.len() < 1000, "not a line: {error}");
    }
}

#[test]
fn well_formed_files_load() {
    for (name, tensors) in LOADED {
        let found = open(name).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(found, *tensors, "{name}");
    }
}

#[test]
fn every_sample_is_expected_to_do_something() {
    let listed: BTreeSet<_> =
        REFUSED.iter().map(|(name, _)| *name).chain(LOADED.iter().map(|(name, _)| *name)).collect();
    for entry in std::fs::read_dir(folder()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(name == "README.md" || listed.contains(name.as_str()), "{name} is in no table");
    }
}

#[test]
fn paths_that_are_no_model_are_named() {
    let missing = folder().join("nowhere.gguf");
    let error = Gguf::open(&missing).unwrap_err().to_string();
    assert!(error.contains("nowhere.gguf`: cannot open: "), "{error}");
    let error = Gguf::open(&folder()).unwrap_err().to_string();
    assert!(error.contains("is a folder, needed a model file"), "{error}");
    let error = SafeTensors::open(&folder()).unwrap_err().to_string();
    assert!(error.contains("the model file is absent, needed `model.safetensors`"), "{error}");
    let error = SafeTensors::open(&folder().join("nowhere")).unwrap_err().to_string();
    assert!(error.contains("nowhere`: cannot open: "), "{error}");
}
