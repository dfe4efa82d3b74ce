//! The families: which marks each is known by, and what it writes.

use super::families::{Attributes, Body, Family, Frame, Named, Tagged};

const BARE: Frame = Frame { begin: "", open: "", head: "", tail: "", close: "", between: "\n", end: "" };

const PLAIN: Family = Family {
    name: "",
    signs: &[],
    frame: BARE,
    body: Body::Objects { keys: Some(("name", "arguments")), list: false, ids: false },
    also: &[],
    also_end: &[],
    quiet: &[],
    bare: false,
    primed: false,
    parallel: true,
};

const LIST: Body = Body::Objects { keys: Some(("name", "arguments")), list: true, ids: false };
const COHERE: Body = Body::Objects { keys: Some(("tool_name", "parameters")), list: true, ids: true };
const HERMES: Frame = Frame { open: "<tool_call>\n", close: "\n</tool_call>", ..BARE };

const PARAMETERS: Tagged = Tagged {
    name_end: ">\n",
    key: "<parameter=",
    key_end: ">",
    attributes: Attributes::Nothing,
    value_end: "</parameter>",
    after: "\n",
    lines: true,
};
const INVOKE: Tagged = Tagged {
    name_end: "\">\n",
    key: "<parameter name=\"",
    key_end: "\">",
    value_end: "</parameter>",
    lines: false,
    ..PARAMETERS
};
const ARG_KEYS: Tagged = Tagged {
    name_end: "\n",
    key: "<arg_key>",
    key_end: "</arg_key>\n<arg_value>",
    value_end: "</arg_value>",
    lines: false,
    ..PARAMETERS
};

/// In this order: a template that shows marks of several belongs to the first.
pub(super) static FAMILIES: &[Family] = &[
    Family {
        name: "harmony",
        signs: &[&["<|channel|>", "<|message|>", "<|call|>"], &["<|channel|>", "to=functions."]],
        body: Body::Harmony,
        quiet: &["<|end|>", "<|return|>", "<|call|>", "<|message|>", "<|constrain|>"],
        parallel: false,
        ..PLAIN
    },
    Family {
        name: "kimi-k2",
        signs: &[&["<|tool_call_argument_begin|>"]],
        frame: Frame {
            begin: "<|tool_calls_section_begin|>",
            head: "<|tool_call_begin|>",
            tail: "<|tool_call_end|>",
            between: "",
            end: "<|tool_calls_section_end|>",
            ..BARE
        },
        body: Body::Named(Named {
            before: "functions.",
            after: ":#<|tool_call_argument_begin|>",
            mark: "<|tool_call_argument_begin|>",
            text: None,
        }),
        ..PLAIN
    },
    Family {
        name: "kimi-k3",
        signs: &[&["<|open|>", "call tool="], &["<|open|>", "<|sep|>", "tool_calls"]],
        frame: Frame {
            begin: "<|open|>tools<|sep|>",
            head: "<|open|>call tool=\"",
            tail: "<|close|>call<|sep|>",
            between: "",
            end: "<|close|>tools<|sep|>",
            ..BARE
        },
        body: Body::Tagged(Tagged {
            name_end: "\" index=\"#\"<|sep|>",
            key: "<|open|>argument key=\"",
            key_end: "\" ",
            attributes: Attributes::Kind,
            value_end: "<|close|>argument<|sep|>",
            after: "",
            lines: false,
        }),
        quiet: &["<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"],
        ..PLAIN
    },
    Family {
        name: "deepseek-v4",
        signs: &[&["｜DSML｜", "tool_calls>"]],
        frame: DSML_V4,
        body: Body::Tagged(DSML),
        ..PLAIN
    },
    Family {
        name: "deepseek-v3.2",
        signs: &[&["｜DSML｜"]],
        frame: Frame { begin: "<｜DSML｜function_calls>\n", end: "</｜DSML｜function_calls>", ..DSML_V4 },
        body: Body::Tagged(DSML),
        ..PLAIN
    },
    Family {
        name: "deepseek-r1",
        signs: &[&["<｜tool▁call▁begin｜>", "```json"]],
        frame: Frame { tail: "\n```<｜tool▁call▁end｜>", between: "\n", ..DEEPSEEK },
        body: Body::Named(Named {
            before: "function<｜tool▁sep｜>",
            after: "\n```json\n",
            mark: "```json",
            text: None,
        }),
        also_end: &["```"],
        ..PLAIN
    },
    Family {
        name: "deepseek-v3.1",
        signs: &[&["<｜tool▁call▁begin｜>"]],
        frame: DEEPSEEK,
        body: Body::Named(Named {
            before: "", after: "<｜tool▁sep｜>", mark: "<｜tool▁sep｜>", text: None
        }),
        ..PLAIN
    },
    Family {
        name: "cohere",
        signs: &[&["<|START_ACTION|>"]],
        frame: Frame { begin: "<|START_ACTION|>", between: ", ", end: "<|END_ACTION|>", ..BARE },
        body: COHERE,
        quiet: &["<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"],
        ..PLAIN
    },
    Family {
        name: "command-r",
        signs: &[&["Action:", "```json", "tool_name"]],
        frame: Frame { begin: "Action:\n```json\n", between: ",\n", end: "```", ..BARE },
        body: Body::Objects { keys: Some(("tool_name", "parameters")), list: true, ids: false },
        also: &["Action: ```json", "Action:```json"],
        ..PLAIN
    },
    Family {
        name: "mistral",
        signs: &[&["[TOOL_CALLS]", "[ARGS]"]],
        frame: Frame { head: "[TOOL_CALLS]", between: "", ..BARE },
        body: Body::Named(Named { before: "", after: "[ARGS]", mark: "[ARGS]", text: None }),
        ..PLAIN
    },
    Family {
        name: "mistral-list",
        signs: &[&["[TOOL_CALLS]"]],
        frame: Frame { begin: "[TOOL_CALLS]", between: ", ", ..BARE },
        body: LIST,
        ..PLAIN
    },
    Family {
        name: "solar",
        signs: &[&["<|tool_call:begin|>"]],
        frame: Frame {
            begin: "<|tool_calls|>",
            head: "<|tool_call:begin|>",
            tail: "<|tool_call:end|>",
            between: "",
            end: "<|calls|>",
            ..BARE
        },
        body: Body::Named(Named {
            before: "call_#<|tool_call:name|>",
            after: "<|tool_call:args|>",
            mark: "<|tool_call:args|>",
            text: None,
        }),
        quiet: &["<|begin|>assistant", "<|content|>", "<|end|>", "<|flush|>"],
        ..PLAIN
    },
    Family {
        name: "apertus",
        signs: &[&["<|tools_prefix|>"]],
        frame: Frame { begin: "<|tools_prefix|>", between: ", ", end: "<|tools_suffix|>", ..BARE },
        body: Body::Objects { keys: None, list: true, ids: false },
        ..PLAIN
    },
    Family {
        name: "gemma-4",
        signs: &[&["<|tool_call>", "<tool_call|>"]],
        frame: Frame { head: "<|tool_call>call:", tail: "<tool_call|>", between: "", ..BARE },
        body: Body::Braces { quote: "<|\"|>" },
        ..PLAIN
    },
    Family {
        name: "function-gemma",
        signs: &[&["<start_function_call>"]],
        frame: Frame { head: "<start_function_call>call:", tail: "<end_function_call>", between: "", ..BARE },
        body: Body::Braces { quote: "<escape>" },
        ..PLAIN
    },
    Family {
        name: "minimax-m3",
        signs: &[&["]<]minimax[>["]],
        frame: Frame {
            begin: "]<]minimax[>[<tool_call>\n",
            head: "]<]minimax[>[<invoke name=\"",
            tail: "]<]minimax[>[</invoke>\n",
            between: "",
            end: "]<]minimax[>[</tool_call>",
            ..BARE
        },
        body: Body::Elements { prefix: "]<]minimax[>[" },
        ..PLAIN
    },
    Family {
        name: "minimax-m2",
        signs: &[&["<minimax:tool_call>"]],
        frame: Frame {
            begin: "<minimax:tool_call>\n",
            head: "<invoke name=\"",
            tail: "</invoke>\n",
            between: "",
            end: "</minimax:tool_call>",
            ..BARE
        },
        body: Body::Tagged(INVOKE),
        ..PLAIN
    },
    Family {
        name: "atem",
        signs: &[&["<atem:function_calls>"], &["atem:invoke"]],
        frame: Frame {
            begin: "<atem:function_calls>\n",
            head: "<atem:invoke name=\"",
            tail: "</atem:invoke>\n",
            between: "",
            end: "</atem:function_calls>",
            ..BARE
        },
        body: Body::Tagged(Tagged {
            key: "<atem:parameter name=\"",
            value_end: "</atem:parameter>",
            ..INVOKE
        }),
        ..PLAIN
    },
    Family {
        name: "seed",
        signs: &[&["<seed:tool_call>"]],
        frame: Frame {
            open: "<seed:tool_call>\n",
            head: "<function=",
            tail: "</function>\n",
            close: "</seed:tool_call>",
            ..BARE
        },
        body: Body::Tagged(Tagged { lines: false, ..PARAMETERS }),
        ..PLAIN
    },
    Family {
        name: "hunyuan",
        signs: &[&["<arg_key{}>", ":opensource"]],
        frame: Frame {
            begin: "<tool_calls:opensource>\n",
            head: "<tool_call:opensource>",
            tail: "</tool_call:opensource>\n",
            between: "",
            end: "</tool_calls:opensource>",
            ..BARE
        },
        body: Body::Tagged(Tagged {
            name_end: "<tool_sep:opensource>\n",
            key: "<arg_key:opensource>",
            key_end: "</arg_key:opensource>\n<arg_value:opensource>",
            value_end: "</arg_value:opensource>",
            ..ARG_KEYS
        }),
        ..PLAIN
    },
    Family {
        name: "glm",
        signs: &[&["<arg_key>", "<arg_value>"]],
        frame: Frame { head: "<tool_call>", tail: "</tool_call>", ..BARE },
        body: Body::Tagged(ARG_KEYS),
        ..PLAIN
    },
    Family {
        name: "minicpm",
        signs: &[&["<function name=", "<param name="]],
        frame: Frame { head: "<function name=\"", tail: "</function>", ..BARE },
        body: Body::Tagged(Tagged {
            name_end: "\">",
            key: "<param name=\"",
            value_end: "</param>",
            after: "",
            ..INVOKE
        }),
        ..PLAIN
    },
    Family {
        name: "qwen-xml",
        signs: &[&["<function=", "<parameter="]],
        frame: Frame { head: "<function=", tail: "</function>", ..HERMES },
        body: Body::Tagged(PARAMETERS),
        ..PLAIN
    },
    Family {
        name: "functionary-3.1",
        signs: &[&["<function=", "</function>"]],
        frame: Frame { head: "<function=", tail: "</function>", between: "", ..BARE },
        body: Body::Named(Named { before: "", after: ">", mark: ">", text: None }),
        ..PLAIN
    },
    Family {
        name: "functionary-3.2",
        signs: &[&[">>>${recipient}"], &["'>>>' + tool_call"]],
        frame: Frame { head: ">>>", between: "", ..BARE },
        body: Body::Named(Named { before: "", after: "\n", mark: "\n", text: Some("all") }),
        primed: true,
        ..PLAIN
    },
    Family {
        name: "lfm2",
        signs: &[&["<|tool_call_start|>"], &["<|tool_list_start|>"], &["List of tools: "]],
        frame: Frame { begin: "<|tool_call_start|>", between: ", ", end: "<|tool_call_end|>", ..BARE },
        body: Body::Python { list: true },
        ..PLAIN
    },
    Family {
        name: "olmo-3",
        signs: &[&["<function_calls>"]],
        frame: Frame { begin: "<function_calls>", between: "\n", end: "</function_calls>", ..BARE },
        body: Body::Python { list: false },
        ..PLAIN
    },
    Family {
        name: "gigachat-3.1",
        signs: &[&["<|function_call|>"]],
        frame: Frame { open: "<|function_call|>", ..BARE },
        quiet: &["<|message_sep|>"],
        parallel: false,
        ..PLAIN
    },
    Family {
        name: "gigachat-3",
        signs: &[&["function call", "role_sep"]],
        frame: Frame { open: "function call<|role_sep|>\n", ..BARE },
        quiet: &["<|message_sep|>"],
        parallel: false,
        ..PLAIN
    },
    Family {
        name: "nemotron",
        signs: &[&["<TOOLCALL>"]],
        frame: Frame { begin: "<TOOLCALL>", between: ", ", end: "</TOOLCALL>", ..BARE },
        body: LIST,
        ..PLAIN
    },
    Family {
        name: "phi-4",
        signs: &[&["<|tool_call|>", "<|/tool_call|>"]],
        frame: Frame { begin: "<|tool_call|>", between: ", ", end: "<|/tool_call|>", ..BARE },
        body: LIST,
        also: &["functools"],
        ..PLAIN
    },
    Family {
        name: "granite-3",
        signs: &[&["<|tool_call|>"]],
        frame: Frame { begin: "<|tool_call|>", between: ", ", ..BARE },
        body: LIST,
        also: &["<tool_call>"],
        also_end: &["</tool_call>"],
        ..PLAIN
    },
    Family {
        name: "functools",
        signs: &[&["functools["]],
        frame: Frame { begin: "functools", between: ", ", ..BARE },
        body: LIST,
        ..PLAIN
    },
    Family {
        name: "minimax-m1",
        signs: &[&["<tool_calls>", "<beginning_of_sentence>"]],
        frame: Frame { begin: "<tool_calls>\n", end: "\n</tool_calls>", ..BARE },
        ..PLAIN
    },
    Family {
        name: "apriel",
        signs: &[&["<tool_calls>"]],
        frame: Frame { begin: "<tool_calls>", between: ", ", end: "</tool_calls>", ..BARE },
        body: LIST,
        ..PLAIN
    },
    Family { name: "hermes", signs: &[&["<tool_call>"]], frame: HERMES, bare: true, ..PLAIN },
    Family {
        name: "llama",
        signs: &[&["<|python_tag|>"], &["\"parameters\": dictionary"]],
        body: Body::Objects { keys: Some(("name", "parameters")), list: false, ids: false },
        also: &["<|python_tag|>"],
        bare: true,
        parallel: false,
        ..PLAIN
    },
];

const DSML_V4: Frame = Frame {
    begin: "<｜DSML｜tool_calls>\n",
    head: "<｜DSML｜invoke name=\"",
    tail: "</｜DSML｜invoke>\n",
    between: "",
    end: "</｜DSML｜tool_calls>",
    ..BARE
};
const DSML: Tagged = Tagged {
    key: "<｜DSML｜parameter name=\"",
    key_end: "\" ",
    attributes: Attributes::IsText,
    value_end: "</｜DSML｜parameter>",
    ..INVOKE
};
const DEEPSEEK: Frame = Frame {
    begin: "<｜tool▁calls▁begin｜>",
    head: "<｜tool▁call▁begin｜>",
    tail: "<｜tool▁call▁end｜>",
    between: "",
    end: "<｜tool▁calls▁end｜>",
    ..BARE
};

/// A template that takes tools and does not say how calls look: objects, wherever they may be expected.
pub(super) static GENERIC: Family = Family {
    name: "generic",
    frame: HERMES,
    also: &["```json", "```tool_call", "[TOOL_CALLS]", "<|tool_call|>", "<tool_calls>", "<|python_tag|>"],
    also_end: &["```", "<|/tool_call|>", "</tool_calls>"],
    bare: true,
    ..PLAIN
};

/// A template without tools: the system prompt asks for calls as Hermes writes them, and small models forget the marks.
pub(super) static PROMPTED: Family =
    Family { name: "prompted", frame: HERMES, also: &["```json"], also_end: &["```"], bare: true, ..PLAIN };
