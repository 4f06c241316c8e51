"""Answers without a server: a conversation, and a batch of prompts."""

from headway import LLM, SamplingParams

with LLM("demo", max_num_seqs=8) as llm:
    (answer,) = llm.chat([{"role": "user", "content": "Name a river in France."}], SamplingParams(temperature=0))
    print(answer.outputs[0].text)
    prompts = ["The capital of France is", "The capital of Japan is"]
    for output in llm.generate(prompts, SamplingParams(temperature=0, max_tokens=8)):
        print(f"{output.prompt} -> {output.outputs[0].text!r}")
