//! One seed, one answer: on the processor in 32 bits, through the Metal kernels, and by the reference.
#![cfg(feature = "soft")]

use metallic::core::DType;
use metallic::{Device, Llm, LoadOptions, Options, Sampling};
use metallic_testkit::{data, missing};

fn load(device: Device) -> Result<Llm, metallic::Error> {
    let exact = device == Device::Cpu;
    let options = LoadOptions::default().device(device).threads(2).exact(exact).kv_type(DType::F32);
    Llm::load_with(data::own().join("stories260K/stories260K-f32.gguf"), &options)
}

#[test]
fn every_setting_of_the_sampler_gives_the_same_tokens_on_every_device() {
    let plain = || Sampling::plain().seed(11);
    let settings = [
        Sampling::greedy(),
        Sampling::default().seed(3),
        plain(),
        plain().temperature(0.6),
        plain().temperature(1.7).top_k(20),
        plain().top_p(0.8),
        plain().min_p(0.1),
        plain().typical(0.7),
        plain().temperature(0.8).top_k(30).top_p(0.9).min_p(0.02),
        plain().repetition_penalty(1.3).presence_penalty(0.2).frequency_penalty(0.1),
        plain().logit_bias([(290, 3.0), (261, f32::NEG_INFINITY)]),
    ];
    let soft = match load(Device::Soft) {
        Ok(soft) => soft,
        Err(error) => return missing(&error),
    };
    let devices = [load(Device::Cpu).unwrap(), soft, load(Device::Reference).unwrap()];
    for (index, sampling) in settings.into_iter().enumerate() {
        let options = Options::default().max_tokens(24).sampling(sampling.clone());
        let answers = devices.each_ref().map(|llm| {
            let answer = llm.generate("Once upon a time", options.clone()).unwrap();
            answer.complete().unwrap().tokens
        });
        assert_eq!(answers[0].len(), 24, "{sampling:?}");
        assert_eq!(answers[1], answers[0], "soft, setting {index}: {sampling:?}");
        assert_eq!(answers[2], answers[0], "reference, setting {index}: {sampling:?}");
    }
}
