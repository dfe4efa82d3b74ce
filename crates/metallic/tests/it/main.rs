//! The library from the outside: models, generation, tensors and text, on every device a machine may have.

mod examples;
mod families;
mod generate_engine;
mod generate_hook;
mod generate_model;
mod generate_offline;
mod generate_sampling;
mod generate_stream;
mod generate_stress;
mod generate_support;
mod generate_text;
mod golden_cpu;
mod golden_reference;
mod golden_soft;
mod gpu_faults;
mod llm;
mod real_models;
mod real_models_soft;
mod same_tokens;
mod tensor;
mod tensor_sizes;
mod tensor_support;
mod text_shared;
mod text_stream;
mod text_template;
mod text_tokenizer;
