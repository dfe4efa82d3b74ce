//! The pre-tokenizers that GGUF files name in `tokenizer.ggml.pre`.
//!
//! A name stands for the patterns of the original tokenizer, applied one after the other; what a pattern does not match
//! stays a piece of its own. A name that is not here is refused: another split gives other tokens and a model that is
//! quietly worse.

use super::TextError;
use super::digits::THOUSANDS;
use super::split::Pattern;

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const MINICPM5: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const SEED_CODER: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
// Han characters are words of their own, and no letters of others.
const KIMI: &str = r"\p{Han}+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const JAIS2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}";
const UFAKZEKA: &str = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const YOUTU: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const YOUTU_SCRIPTS: &str = r"[\u{AC00}-\u{D7A3}\u{3131}-\u{318E}]+|[\u{FF01}\u{2026}\u{201C}\u{201D}\u{2018}\u{2019}\u{2014}\u{FF1A}\u{FF1B}\u{FF0C}\u{3001}-\u{303F}\u{FE30}-\u{FE4F}]+|[\u{3105}-\u{312F}]+|[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+";
const AFMOE_SCRIPTS: &str = r"[\u{4E00}-\u{9FFF}\u{3400}-\u{4DBF}\u{F900}-\u{FAFF}\u{3040}-\u{309F}\u{30A0}-\u{30FF}\u{FF65}-\u{FF9F}\u{2F00}-\u{2FDF}\u{0E40}-\u{0E7F}\u{0E80}-\u{0EFF}\u{1780}-\u{17FF}\u{1000}-\u{109F}\u{AA60}-\u{AA7F}\u{A9E0}-\u{A9FF}\u{AC00}-\u{D7AF}\u{1100}-\u{11FF}]+";
const SPARK: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"##;
const BAILING: &str =
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
const EXAONE_MOE: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
// The letters that have case, as written there; by number, because some of them turn into others when normalized.
const DEEPSEEK_WORDS: &str = r"\s?[A-Za-z\u{B5}\u{C0}-\u{D6}\u{D8}-\u{F6}\u{F8}-\u{1BA}\u{1BC}-\u{1BF}\u{1C4}-\u{293}\u{295}-\u{2AF}\u{370}-\u{373}\u{376}\u{377}\u{37B}-\u{37D}\u{37F}\u{386}\u{388}-\u{38A}\u{38C}\u{38E}-\u{3A1}\u{3A3}-\u{3F5}\u{3F7}-\u{481}\u{48A}-\u{52F}\u{531}-\u{556}\u{10A0}-\u{10C5}\u{13A0}-\u{13F5}\u{13F8}-\u{13FD}\u{1C90}-\u{1CBA}\u{1CBD}-\u{1CBF}\u{1D00}-\u{1D2B}\u{1D6B}-\u{1D77}\u{1D79}-\u{1D9A}\u{1E00}-\u{1F15}\u{1F18}-\u{1F1D}\u{1F20}-\u{1F45}\u{1F48}-\u{1F4D}\u{1F50}-\u{1F57}\u{1F59}\u{1F5B}\u{1F5D}\u{1F5F}-\u{1F7D}\u{1F80}-\u{1FB4}\u{1FB6}-\u{1FBC}\u{1FBE}\u{1FC2}-\u{1FC4}\u{1FC6}-\u{1FCC}\u{1FD0}-\u{1FD3}\u{1FD6}-\u{1FDB}\u{1FE0}-\u{1FEC}\u{1FF2}-\u{1FF4}\u{1FF6}-\u{1FFC}\u{2102}\u{2107}\u{210A}-\u{2113}\u{2115}\u{2119}-\u{211D}\u{2124}\u{2126}\u{2128}\u{212A}-\u{212D}\u{212F}-\u{2134}\u{2139}\u{213C}-\u{213F}\u{2145}-\u{2149}\u{214E}\u{2183}\u{2184}\u{2C00}-\u{2C7B}\u{2C7E}-\u{2CE4}\u{2CEB}-\u{2CEE}\u{2CF2}\u{2CF3}\u{A640}-\u{A66D}\u{A680}-\u{A69B}\u{A722}-\u{A76F}\u{A771}-\u{A787}\u{A78B}-\u{A78E}\u{AB70}-\u{ABBF}\u{FB00}-\u{FB06}\u{FB13}-\u{FB17}\u{FF21}-\u{FF3A}\u{FF41}-\u{FF5A}\u{10400}-\u{1044F}\u{104B0}-\u{104D3}\u{104D8}-\u{104FB}\u{10C80}-\u{10CB2}\u{10CC0}-\u{10CF2}\u{118A0}-\u{118DF}\u{1E900}-\u{1E943}]+";
const DEEPSEEK_MARKS: &str =
    r"\s?[!-/:-~\u{FF01}-\u{FF0F}\u{FF1A}-\u{FF5E}\u{2018}-\u{201F}\u{3000}-\u{3002}]+";
const HAN_KANA: &str = r"[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+";
const CJK: &str = r"[\u{4E00}-\u{9FA5}\u{0800}-\u{4E00}\u{AC00}-\u{D7FF}]+";
const LINES: &str = r"[^\n]+|\n+";
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";

/// What a name stands for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PreTokenizer {
    pub patterns: &'static [&'static str],
    /// A word that is a token is not put together by merges.
    pub whole_words: bool,
    /// A beginning-of-text token is added unless the file says otherwise.
    pub add_bos: bool,
    /// Text is composed first (NFC), as the original tokenizer does; the files do not say so.
    pub composes: bool,
    /// What merges begin with.
    pub letters: Letters,
}

/// What the words of byte-pair encoding are spelled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Letters {
    /// Bytes, as in GPT-2.
    Bytes,
    /// Characters, with `▁` for a space and bytes for what the vocabulary lacks, as in SentencePiece.
    Characters,
}

const KNOWN: &str = "default, gpt-2 and names that mean it (phi-2, mpt, olmo, jais, trillion, exaone4, …), llama-bpe \
                     (llama3, falcon3, pixtral, lfm2, …), qwen2 (deepseek-r1-qwen, megrez, hunyuan, grok-2, …), qwen35, smollm, \
                     starcoder, refact, command-r, codeshell, exaone, exaone-moe, minerva-7b, stablelm2, dbrx, smaug-bpe, \
                     chatglm-bpe, glm4, deepseek-llm, deepseek-coder, deepseek-v3, falcon, bloom, poro-chat, viking, tekken, gpt-4o, \
                     llama4, minimax-m2, tiny_aya, bailingmoe, seed-coder, minicpm5, kimi-k2, superbpe, jais-2, ufakzeka, youtu, afmoe, \
                     spark2_5, hy_v4, laguna, chameleon, gemma4, sarvam-moe, granite-embed-multi";

/// The pre-tokenizer called `name`.
pub(super) fn by_name(name: &str) -> Result<PreTokenizer, TextError> {
    let patterns: &'static [&'static str] = match name {
        "default" => &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
        "gpt-2" | "phi-2" | "jina-es" | "jina-de" | "jina-v2-es" | "jina-v2-de" | "gigachat" | "a.x-4.0"
        | "mellum" | "mpt" | "olmo" | "jais" | "trillion" | "granite-docling" | "exaone4" | "modern-bert" => {
            &[GPT2]
        }
        "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0" | "lfm2"
        | "jina-v5-nano" | "dbrx" | "smaug-bpe" | "glm4" | "chatglm-bpe" => &[LLAMA3],
        "qwen2" | "deepseek-r1-qwen" | "kormo" | "f2llmv2" | "megrez" | "stablelm2" | "hunyuan"
        | "solar-open" | "grok-2" => &[QWEN2],
        "qwen35" => &[QWEN35],
        "starcoder" | "refact" | "command-r" | "smollm" | "codeshell" | "exaone" | "minerva-7b"
        | "mellum2" => &[r"\p{N}", GPT2],
        "deepseek-llm" => &[r"[\r\n]", DEEPSEEK_WORDS, DEEPSEEK_MARKS, r"\s+$", CJK, r"\p{N}+"],
        "deepseek-coder" => &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, r"\p{N}"],
        "deepseek-v3" | "hunyuan-dense" | "joyai-llm" | "hy_v4" => &[r"\p{N}{1,3}", HAN_KANA, DEEPSEEK3],
        "falcon" => &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
        "bloom" | "poro-chat" | "gpt3-finnish" => &[BLOOM],
        "viking" => &[BLOOM, r"\p{N}"],
        "tekken" => &[TEKKEN],
        "gpt-4o" | "llama4" | "kanana2" | "talkie" | "minimax-m2" | "granite-embed-multi-97m" => &[O200K],
        "tiny_aya" | "cohere2moe" => &[r"\d{1,3}(?=(?:\d{3})*\b)", O200K],
        "bailingmoe" | "bailingmoe2" | "llada-moe" => &[BAILING],
        "seed-coder" => &[SEED_CODER],
        "minicpm5" => &[r"\p{N}{1,3}", MINICPM5],
        "exaone-moe" => &[EXAONE_MOE],
        "kimi-k2" => &[KIMI],
        "superbpe" => &[r"\p{N}+", r"(?=(\d{3})+(?!\d))"],
        "jais-2" => &[JAIS2],
        "ufakzeka" => &[UFAKZEKA],
        "youtu" => &[YOUTU_SCRIPTS, YOUTU],
        "afmoe" => &[THOUSANDS, AFMOE_SCRIPTS, DEEPSEEK3],
        "spark2_5" => &[r"\p{N}{1,3}", HAN_KANA, SPARK, r"\p{N}"],
        "laguna" => &[LINES, QWEN2],
        "chameleon" => &[
            "<sentinel:[0-9]+>",
            "IMGIMG[A-I]{1,4}Z",
            r"[\t\n]|    |  ",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            GPT2,
        ],
        "gemma4" | "granite-embed-multi-311m" | "sarvam-moe" => &[LINES],
        _ => {
            return Err(TextError::Unsupported {
                part: "the pre-tokenizer (tokenizer.ggml.pre)",
                found: name.into(),
                known: KNOWN,
            });
        }
    };
    let llama3 = [
        "llama3",
        "llama-v3",
        "llama-bpe",
        "falcon3",
        "falcon-h1",
        "pixtral",
        "midm-2.0",
        "lfm2",
        "jina-v5-nano",
        "tekken",
    ]
    .contains(&name);
    let whole_words = ["minicpm5", "youtu", "granite-embed-multi-97m"];
    let gemma4 = ["gemma4", "granite-embed-multi-311m"].contains(&name);
    Ok(PreTokenizer {
        patterns,
        whole_words: llama3 || whole_words.contains(&name),
        add_bos: llama3 || gemma4 || name == "chameleon",
        composes: ["qwen2", "qwen35", "command-r", "olmo", "mpt"].contains(&name),
        letters: if gemma4 || name == "sarvam-moe" { Letters::Characters } else { Letters::Bytes },
    })
}

/// The name that GGUF files have for these patterns.
pub(crate) fn name_of(patterns: &[String]) -> Option<&'static str> {
    const NAMES: [&str; 14] = [
        "gpt-2",
        "llama-bpe",
        "qwen2",
        "qwen35",
        "smollm",
        "tekken",
        "gpt-4o",
        "deepseek-llm",
        "deepseek-coder",
        "deepseek-v3",
        "tiny_aya",
        "bailingmoe",
        "seed-coder",
        "exaone-moe",
    ];
    NAMES.into_iter().find(|name| by_name(name).is_ok_and(|pre| pre.patterns == patterns))
}

/// The pattern of GPT-2 as it is written.
pub(crate) const GPT2_PATTERN: &str = GPT2;

/// The pattern of GPT-2, which `tokenizer.json` files mean by `ByteLevel` with `use_regex`.
pub(super) fn gpt2() -> Result<Pattern, TextError> {
    Pattern::regex(GPT2)
}

#[cfg(test)]
mod tests {
    use super::super::bounds::Patience;
    use super::super::pipeline::{Pieces, Step};
    use super::super::split::Behavior;
    use super::*;

    #[test]
    fn every_pattern_compiles_and_an_unknown_name_is_refused() {
        for name in
            ["default", "gpt-2", "llama-bpe", "qwen2", "qwen35", "smollm", "deepseek-llm", "deepseek-coder"]
                .into_iter()
                .chain([
                    "deepseek-v3",
                    "falcon",
                    "bloom",
                    "viking",
                    "tekken",
                    "gpt-4o",
                    "tiny_aya",
                    "bailingmoe",
                ])
                .chain([
                    "seed-coder",
                    "minicpm5",
                    "exaone-moe",
                    "kimi-k2",
                    "superbpe",
                    "jais-2",
                    "ufakzeka",
                    "youtu",
                ])
                .chain(["afmoe", "spark2_5", "laguna", "chameleon", "gemma4"])
        {
            for pattern in by_name(name).unwrap().patterns {
                Pattern::regex(pattern).unwrap();
            }
        }
        let error = by_name("llama-9000").unwrap_err().to_string();
        assert!(error.contains("llama-9000") && error.contains("qwen2"), "{error}");
    }
    /// Oniguruma, the engine these patterns were written for, cut these texts the same way.
    #[test]
    fn texts_are_cut_as_oniguruma_cuts_them() {
        let file = include_str!("../../tests/data/text/splits.json");
        let file: serde_json::Value = serde_json::from_str(file).unwrap();
        let cases = file["cases"].as_array().unwrap();
        assert!(cases.len() >= 29, "only {} pre-tokenizers", cases.len());
        for case in cases {
            let name = case["name"].as_str().unwrap();
            let patterns = by_name(name).unwrap().patterns.iter().map(|p| Pattern::regex(p).unwrap());
            let steps: Vec<Step> = patterns.map(|p| Step::Split(p, Behavior::Isolated, false)).collect();
            for (text, expected) in
                file["texts"].as_array().unwrap().iter().zip(case["pieces"].as_array().unwrap())
            {
                let mut pieces = Pieces::whole(text.as_str().unwrap().into());
                for step in &steps {
                    pieces.apply(step, true, &Patience::default()).unwrap();
                }
                let found: Vec<&str> = pieces.ranges.iter().map(|r| &pieces.text[r.clone()]).collect();
                assert_eq!(serde_json::json!(found), *expected, "{name} {text}");
            }
        }
    }
}
