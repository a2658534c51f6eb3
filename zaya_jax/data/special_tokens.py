"""Names of the control tokens this project writes and reads.

`<|im_start|>`, `<|im_end|>` and `<zyphra_tool_response>` are named in the released chat template.
The names of the other tool markers and of the think markers are our choice, by analogy.
"""

from __future__ import annotations

PAD = "<pad>"
EOS = "<eos>"
BOS = "<bos>"

CHAT_MARKERS = (
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<zyphra_tool_call>",
    "</zyphra_tool_call>",
    "<zyphra_tool_response>",
    "</zyphra_tool_response>",
)

# Ids 0, 1, 2, ... of the tokenizers made here; the first three are those of the released one.
SPECIAL_TOKENS = (PAD, EOS, BOS, *CHAT_MARKERS)

# Usual names in other people's tokenizer.json, first match wins.
USUAL_NAMES = {
    "pad": (PAD, "[PAD]", "<|pad|>", "<|padding|>"),
    "eos": (EOS, "</s>", "<|end_of_text|>", "<|endoftext|>", "<|im_end|>"),
    "bos": (BOS, "<s>", "<|begin_of_text|>", "<|startoftext|>"),
}
