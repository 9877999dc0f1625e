"""Questions about weft: what it is, how to run it, what it speaks and where it runs."""

from dataclasses import dataclass

from scripts.demo.dialogue import Episode, Exchange, Maker
from scripts.demo.draw import Draw

HOW = (
    "[how do i|how can i|how do you|how would i|how to|how should i|what's the command to|what is the command to|tell me how to|"
    "show me how to|i want to|i'd like to|can you tell me how to|what's the way to|i need to|help me|what do i type to|"
    "how does one|what script do i use to|which script [do i|should i] [use|run] to|explain how to|how can we|how do we|could you explain how to]"
)
WEFT = "[weft|weft|weft|it|this|this thing|this server|the server]"
HELLO = "[|||||hi, |hello, |hey, |ok, |so, |please |um, |well, |quick question: |one more thing: |and ]"
END = "[?|?|?|| please?| pls?| for me?| now?| exactly?| then?| thanks]"


@dataclass(frozen=True)
class Fact:
    answer: str
    brief: str
    wordings: tuple[str, ...]


def fact(answer: str, brief: str, *wordings: str) -> Fact:
    return Fact(answer, brief, wordings)


FACTS = [
    fact(
        "weft is a server for open-weight language models, written in JAX. It runs on NVIDIA Hopper GPUs, on TPU pod slices and on a laptop CPU.",
        "A JAX server for open-weight language models.",
        "[what is|what's|what exactly is|tell me about|describe|explain|what do you know about|define|info on|give me an overview of|introduce] weft",
        "[what does|what can] weft do", "[what is|what's] this [project|repo|repository|codebase|software|program|tool|server|thing|app] [about||for]",
        "[what is|what's] weft [about|for|used for|good for|supposed to do]", "weft", "[what|which] kind of [software|program|project|thing] is weft",
        "[can you|could you|please|would you] [explain|describe|tell me] what weft is", "what [am i looking at|is all this|does this project do|does this server do]",
        "[i'm new here|i am new|im new|new here], [what is|what's] [weft|this|this about]", "give me a [summary|short summary|description] of weft",
        "[so |]weft is what", "what would i use weft for", "what does weft serve", "tell me [more|something] about weft",
    ),
    fact(
        "Run scripts/serve. It starts the demo model on a laptop, with no GPU and no download, and prints the address of the chat page.",
        "scripts/serve",
        f"{HOW} [run|start|launch|boot|use|fire up|bring up|spin up|get|set up|host|serve with|run a] [weft|weft|you|it|this|the server|this server|this thing|the demo|weft locally|it locally|you locally|weft on my machine|a server]",
        f"{HOW} [run|start|launch|try|use|serve] [weft|you|this|the demo|the model|this model|the demo model] on [my|a] [laptop|computer|machine|pc|mac|cpu|desktop]",
        f"{HOW} [get started|begin|start|get weft running|get it running|get this running|get going|run weft without a gpu|serve a model|serve the demo model|run the demo|try weft|try it|try it out]",
        "what does scripts/serve do", "what is scripts/serve [for|]", "[start|run|launch] [weft|the server|the demo]",
        "[where do i start|where should i start|what is the first step|what do i run first|what should i run first|how do i install weft and run it|quickstart|quick start|getting started]",
        "[which|what] [script|command] [starts|runs|launches|serves] [weft|the server|it|the demo|you|the model]",
        "is there a quick [way|script] to [try|run|start] [weft|it|this]", "i just cloned [weft|the repo|this], what [now|next|do i run]",
    ),
    fact(
        "Run scripts/test. It runs the whole test suite on two CPU cores, without an accelerator.",
        "scripts/test",
        f"{HOW} [run|start|launch|execute] [the|all|all the|weft's|your|its|] [tests|test suite|unit tests|test]",
        f"{HOW} [test|verify|check] [weft|it|this|that it works|that weft works|my changes|my change|the code|the repo|my installation]",
        "[what|which] [script|command] runs the [tests|test suite]", "what does scripts/test do", "what is scripts/test [for|]", "where are the tests",
        "[how is|how's] [weft|it] tested", "[does weft have|are there|do you have] [tests|a test suite|unit tests]", "can i run the tests [on my laptop|without a gpu|here]",
    ),
    fact(
        "Run scripts/check. It runs the linter, the formatter and the type checker.",
        "scripts/check",
        f"{HOW} [lint|format|type check|typecheck|check the style of|check the types of] [the code|weft|my code|it|this]", "what does scripts/check do",
        "what is scripts/check [for|]", "[which|what] [script|command] [lints|checks] the [code|style|types]", f"{HOW} run the [linter|formatter|type checker]",
    ),
    fact(
        "Change one line: the mesh in the deployment's TOML file. The model code stays as it is.",
        "Change the mesh line in the deployment's TOML.",
        f"{HOW} [grow|scale|scale up|grow the model|use more gpus|use more chips|use more devices|scale to more gpus|scale weft|scale it up|serve a bigger model|serve a larger model|move to a bigger machine|go bigger|change the mesh|use a larger model|run a bigger model|run a larger model|add gpus|add more gpus|use 8 gpus|scale out|change the mesh config|add chips]",
        "[how does|how can|how will|can|does] [weft|it|the server] [scale|grow|scale up|scale out]", "what [changes|do i change|must i change|has to change|do i have to change] when the model [grows|gets bigger|gets larger]",
        "what is a mesh [in weft|config|]", "how does [sharding|the mesh|tensor parallelism|parallelism] work [here|in weft|]", "[where is|what is] the mesh config",
        "what if my model [does not fit|doesn't fit|gets bigger|grows|is too big]", "my model got bigger, what [now|do i do|do i change]",
        "does the code change when [the model grows|i add gpus|i use more gpus|i scale]", "what do i change to use more [gpus|chips|devices|tpus]",
    ),
    fact(
        "weft runs on NVIDIA Hopper GPUs such as the H100, on TPU pod slices, and on a laptop CPU for development.",
        "H100 and H200 GPUs, TPU pods, laptop CPUs.",
        "[what|which] [hardware|machines|devices|gpus|accelerators|chips|platforms|cards|computers] [does|can|do] [weft|it|you|the server] [run on|support|need|use|work on|work with|require]",
        "where [does|can|do] [weft|it|you] run", "[does|can|will] [weft|it|this] [run|work] on [an h100|h100|h200|a gpu|gpus|a tpu|tpus|tpu|nvidia|a laptop|my laptop|cpu|a cpu|a tpu pod|nvidia gpus|hopper|tpu pods|tpu v5e|my pc|a desktop]",
        "[do i|do you|does weft|does it] [need|require] a [gpu|tpu|graphics card|accelerator|big machine|cluster]", "[is a gpu|is a tpu] [required|needed|necessary]",
        "[supported|what is the supported|list the supported] [hardware|devices|gpus|platforms]", "what [do i need|is needed|does it take] to run [weft|it|this]", "[can i|may i] [run|use] [weft|it|this] without a gpu",
        "[what are the|the|any] [hardware|system] requirements", "[which|what] gpus [are supported|work]",
    ),
    fact(
        "Run scripts/launch_gpu on the GPU machine. It checks that the model fits and starts the server.",
        "scripts/launch_gpu",
        f"{HOW} [run|start|launch|deploy|use|serve|install] [weft|it|this|you|the server|a model] on [an h100|h100|h200|a gpu|gpus|nvidia|nvidia gpus|a gpu machine|a gpu node|hopper|8 gpus|my gpu|an h100 node|a gpu server|h100s|a hopper gpu]",
        "what does scripts/launch_gpu do", "what is scripts/launch_gpu [for|]", "[which|what] script [starts|launches|runs] [weft|it|the server] on [gpus|a gpu|an h100|nvidia]", f"{HOW} [launch|deploy] on [gpus|a gpu|an h100|nvidia]",
    ),
    fact(
        "Run scripts/launch_tpu_pod. It starts weft on every host of the TPU pod slice.",
        "scripts/launch_tpu_pod",
        f"{HOW} [run|start|launch|deploy|use|serve|install] [weft|it|this|you|the server|a model] on [a tpu|tpus|tpu|a tpu pod|a pod|tpu pods|a pod slice|a tpu pod slice|google tpus|many hosts|several hosts|multiple hosts|v5e|v5p|v6e|a tpu v5e]",
        "what does scripts/launch_tpu_pod do", "what is scripts/launch_tpu_pod [for|]", "[which|what] script [starts|launches|runs] [weft|it|the server] on [tpus|a tpu|a tpu pod]", f"{HOW} [launch|deploy] on [tpus|a tpu|a tpu pod]",
    ),
    fact(
        "Yes. weft has a gRPC interface with deadlines, cancellation and typed errors, for internal services.",
        "Yes, with deadlines and cancellation.",
        "[does|can] [weft|it|you|the server] [support|speak|have|offer|do|use|provide] grpc", "[is there|do you have] [a|] grpc [interface|api|support|endpoint|]", "[what about|how about|and] grpc", "grpc",
        "[can|how do|how can] [i|an internal service|a service|my service] [call|use|reach] [weft|it|you] [over|with|through|via] grpc", "what is the grpc [interface|api|endpoint] [for|like|]",
        f"{HOW} [use|call] grpc", "[tell me about|explain|describe] [grpc|the grpc interface|the grpc api]", "why [grpc|is there grpc|does weft have grpc]",
    ),
    fact(
        "Point the openai SDK's base_url at weft and use it as you know it. Every parameter works or is refused with a clear error.",
        "Set the SDK's base_url to weft.",
        "[does|can|will] [weft|it|the server|this] [support|work with|speak|have|use|offer] [the openai sdk|openai|the openai api|the openai client|openai clients|an openai compatible api|openai's python library|langchain]",
        f"{HOW} [use|connect|call|point] [the openai sdk|openai sdk|the openai client|openai|my openai client|the openai python package|openai's sdk] [with|to|at|] [weft|it|this|you|]",
        "[is it|is weft|are you|is this] [openai compatible|compatible with openai|compatible with the openai sdk|openai api compatible]", "[what about|how about] [the openai sdk|openai|the openai api]", "openai sdk", "openai",
        f"{HOW} [call weft from python|use weft from python|use it from my code|call it from my app|connect my app|call the api|use the api|connect my application|write a client]",
        "[what|which] [api|apis|endpoints] [does weft|do you|does it] [have|offer|support|speak|expose]", "can i use my [existing|old|] openai code [with weft|here|]", "what is the base url [for|of|] [weft|the api|]",
    ),
    fact(
        "weft speaks HTTP with server-sent events, WebSocket and gRPC. All go through the same checks.",
        "HTTP, SSE, WebSocket and gRPC.",
        "[what|which] protocols [does|can|do] [weft|it|you|the server] [speak|support|have|offer|use]", "[does|can] [weft|it|the server] [support|do|have|speak|offer] [websocket|websockets|sse|http|server-sent events|rest|streaming]",
        "[is there|do you have] [a|] [websocket|rest|http|streaming] [interface|api|endpoint|support|]", f"{HOW} stream [tokens|answers|the answer|responses|replies|output]", "[can|does] [it|weft] stream [tokens|answers|responses|]",
    ),
    fact(
        "Run weft plan. It shows the memory per device, the collectives and a speed estimate before you rent anything.",
        "weft plan",
        f"{HOW} [know|check|tell|see|find out|estimate|predict] [if|whether] [a|my|the] model [fits|will fit|fits in memory|would fit]", "will my model fit [in memory|on my gpu|]", "what does weft plan do", "what is weft plan [for|]", "weft plan",
        f"{HOW} [estimate|predict|know|plan] [memory|the memory|the speed|speed|how much memory i need|how fast it will be|the memory use|how fast it runs]", "how much memory [do i need|does it need|does a model need|will it need|does weft need]",
        "how many gpus do i need", "which [gpu|machine] should i [rent|buy]", f"{HOW} plan a deployment",
    ),
    fact(
        "weft's commands are weft serve, weft chat, weft plan, weft bench and weft convert.",
        "serve, chat, plan, bench, convert.",
        "[what|which] [commands|subcommands] [does weft have|are there|can i use|do you have|does the cli have]", "[list|show] [the|all|weft's|all the] [commands|subcommands|cli commands]", "what is the [cli|command line] like", "[is there|does it have|do you have] a [cli|command line|command-line tool]",
    ),
    fact(
        "Run weft chat. It opens a chat in the terminal. The server also has a chat page.",
        "weft chat",
        f"{HOW} [chat|talk|chat with the model|chat in the terminal|talk to the model|open the chat page|open the chat|chat with weft|talk to weft|chat from the terminal|use the chat page]", "what does weft chat do", "what is weft chat [for|]", "weft chat", "[is there|do you have|does weft have] a [chat page|chat ui|web ui|ui|web page|web interface|user interface|gui|chat interface|frontend]", "where is the chat page",
    ),
    fact(
        "Run weft bench, or scripts/bench_gpu on a GPU. They measure tokens per second and latency.",
        "weft bench",
        f"{HOW} [benchmark|measure|bench] [weft|it|the server|the speed|throughput|latency|performance|tokens per second|my gpu]", "what does weft bench do", "what does scripts/bench_gpu do", "what is weft bench [for|]", "weft bench", f"{HOW} [run|start] [a|the] benchmark[s|]",
    ),
    fact(
        "Run weft convert. It turns a downloaded checkpoint into weft's own layout.",
        "weft convert",
        f"{HOW} [convert|import|load|use|serve|bring] [a|my|my own|a hugging face|a huggingface|a downloaded] [checkpoint|model|weights]", "what does weft convert do", "what is weft convert [for|]", "weft convert", "can [i|weft] [use|load|serve|run] [my own|hugging face|huggingface|other|my] [model|models|weights|checkpoints]",
    ),
    fact(
        "Run scripts/train_demo. It makes the dialogues, trains the tokenizer and the model on two cores in an hour or two, and exports a checkpoint.",
        "scripts/train_demo",
        f"{HOW} [train|retrain|rebuild|make|reproduce|build|fine-tune|finetune] [you|the demo model|the demo|this model|the model|your model|a new demo model]", "[how|where] were you [trained|made|built]", "[how|where] was [the demo model|this model|the demo] [trained|made|built]", "what does scripts/train_demo do", "what is scripts/train_demo [for|]",
        "[what|which] [script|command] trains [you|the demo model|the model]", "can i [train|retrain] you", "what were you trained on", "[what is|what's] your training data", "how long [did you train|did training take|does training take|were you trained]",
    ),
    fact(
        "Edit the TOML files in configs: models, meshes and deployments. A deployment names one model, one mesh and its limits.",
        "In the TOML files in configs.",
        f"{HOW} [configure|config|change the config of|set up the config of|change the settings of] [weft|it|this|the server]", "[where|how] is [weft|it|the server|everything] configured", "where [is|are|do i find] the [config|configs|config files|settings|configuration]", "what is a deployment [file|config|in weft|]", "what [format|language] are the configs in", "[what is|what's] in configs", f"{HOW} [write|make|add] a [deployment|config|deployment file]",
    ),
    fact(
        "weft serves open-weight families such as Llama and others. To add one, write one file in models and one test.",
        "Llama and other open-weight families.",
        "[what|which] models [does|can|do] [weft|it|you|the server] [support|serve|run|load|work with]", "[can|does] [weft|it] [serve|run|support|load] [llama|mistral|qwen|gemma|mixtral|deepseek|llama 3|gpt-oss|qwen3]", f"{HOW} add a [model|model family|new model|family]", "[list the|what are the] supported models", "which families are supported",
    ),
    fact(
        "weft streams survive: a supervisor restarts the engine, and live streams continue with the tokens that would have come.",
        "The supervisor restarts it and streams continue.",
        "what happens [if|when] the [engine|server|process|gpu] [crashes|dies|fails|is killed|goes down]", "[is|how is] [weft|it] [fault tolerant|reliable|robust]", f"{HOW} recover from a crash", "do streams survive a [crash|restart]", "what if [weft|it|the engine|the server] crashes",
    ),
    fact(
        "weft is written in Python with JAX and Flax. The attention kernels are written in Pallas.",
        "Python, with JAX and Pallas.",
        "[what|which] [language|programming language|framework] is [weft|it|this] [written in|built with|made with|using]", "what is [weft|it] [written in|built with|built on|made of]", "[does|is] [weft|it] [use|using|written in|based on] [jax|pytorch|torch|c++|rust|python|flax|pallas|tensorflow]", "why [jax|does weft use jax|is weft written in jax]", "is there any pytorch in [weft|it]",
    ),
    fact(
        "weft is open source. The licence is in the LICENSE file of the repository.",
        "See the LICENSE file.",
        "[what|which] [license|licence] [does weft have|is weft under|is it under|does it have|is it]", "is [weft|it|this] [open source|free|free to use|foss]", "[how much does weft cost|what does weft cost|do i have to pay for weft|is weft paid|what is the price of weft]", "[license|licence]",
    ),
    fact(
        "The weft is the thread that is woven across in a loom. Here prefill chunks and decode steps are woven over a device mesh.",
        "The weft is a thread in weaving.",
        "[why is it|why is this|why's it] [called|named] weft", "what does [weft|the name weft|the name|the word weft] mean", "where does the name [weft|] come from", "why the name weft", "why weft", "[what is|what's] the meaning of [weft|the name]",
    ),
    fact(
        "The docs folder has architecture, operations, performance, decisions and a page about me, the demo model.",
        "In the docs folder.",
        "where [is|are|can i find|do i find] the [docs|documentation|manual|guide|user guide]", "[is there|do you have|does weft have] [documentation|a manual|docs|any docs|a guide]", "[documentation|docs]", "where can i [read|learn] more [about weft|]", f"{HOW} learn more [about weft|]",
    ),
    fact(
        "The prefix cache keeps the keys and values of text seen before, so a shared beginning is not computed twice.",
        "It reuses the work on shared text.",
        "[what is|what's|explain|describe|tell me about] the prefix cache", "how does [the prefix cache|prefix caching|caching] work", "[does|can] [weft|it] [cache prefixes|do prefix caching|have a prefix cache]", "prefix cache",
    ),
    fact(
        "A page is a block of the key-value cache. Sequences hold pages, share them by prefix and free them when they end.",
        "A block of the key-value cache.",
        "[what is|what's|explain] a page [in weft|]", "[what is|what's|explain|how does] paged attention [work|]", "[what is|what's] the [kv cache|key-value cache|page table|page pool]", "how is the [kv cache|cache|memory] managed",
    ),
    fact(
        "A small draft model guesses a few tokens, and the large model checks them in one step. The answer stays the same, only faster.",
        "A draft model guesses, the big one checks.",
        "[what is|what's|explain|how does] [speculative decoding|speculation|the draft model|a draft model|speculative sampling] [work|for|]", "[does|can] [weft|it] [do|support|have] speculative decoding", "what is a draft [for|model|]",
    ),
    fact(
        "Tools are given in the request as with the OpenAI API. I answer with a call, you send the result, and I use it.",
        "Give tools in the request.",
        f"{HOW} [use|give you|offer|add|define] tools", "[do you|does weft|can you|can weft|does it] [support|have|do|use|call] [tools|tool calling|function calling|functions|tool calls]", "[what about|how does] [tool calling|function calling] [work|]",
    ),
    fact(
        "weft can force JSON: set response_format to a JSON schema, and only tokens that fit the schema are sampled.",
        "Set response_format to a JSON schema.",
        f"{HOW} [get json|force json|get json output|get structured output|use a json schema|constrain the output|get valid json]", "[does|can] [weft|it|you] [support|do|force|guarantee] [json mode|structured output|json schema|json output|valid json|structured outputs|grammars]", "[json mode|structured output]",
    ),
    fact(
        "Keys are read from the environment. Each request carries its key, and each key has its own limits.",
        "With API keys, each with its limits.",
        f"{HOW} [set|add|use|get|create] [an|the|a|my] [api key|key|token]", "[do i|does weft|does it] [need|require|use|want] [an api key|api keys|a key|authentication|a password]", "[how does|how do] [authentication|auth|api keys|rate limits|rate limiting|limits] work", "[is there|does weft have] [authentication|rate limiting|auth]",
    ),
    fact(
        "weft exports Prometheus metrics, traces and structured logs, and has health endpoints.",
        "With metrics, traces and logs.",
        f"{HOW} [monitor|observe|watch] [weft|it|the server]", "[does|are there|does weft] [weft|it|] [have|export] [metrics|traces|logs|monitoring|prometheus metrics|health checks]", "where are the [logs|metrics]", "[what about|is there] [monitoring|observability|prometheus]", "how do i see the [metrics|logs]",
    ),
    fact(
        "To stop weft, press Ctrl-C. It ends the live streams and frees the device.",
        "Press Ctrl-C.",
        f"{HOW} [stop|quit|shut down|kill|exit|end|turn off|close] [weft|it|the server|this|this server]", "how is the server stopped",
    ),
    fact(
        "The server is in serving, the models in models, the kernels in pallas_kernels and the mesh rules in sharding.",
        "serving, models, pallas_kernels, sharding.",
        "[what is|what's|explain|describe|show me] the [layout|structure|architecture|folder structure] of [weft|the code|the repo|the repository|it]", "where is the [code|source|source code|model code|kernel code|server code]", "how is [weft|the code|the repo] [organised|organized|structured|laid out]", "[what|which] folders are there", "where are the [kernels|models]", "how does weft work",
    ),
    fact(
        "I have about 3 million parameters. I was trained from scratch on made-up dialogues, on two CPU cores.",
        "About 3 million parameters.",
        "how [big|large|small] [are you|is the demo model|is this model|is your model]", "how many parameters [do you have|does the demo model have|have you|does this model have]", "[what is|what's] your [size|parameter count|architecture]", "[what|which] [model|kind of model|llm|language model] are you", "are you a [big|small|large] model", "what [size|architecture] are you",
    ),
    fact(
        "I am a tiny model for trying weft out. For real work, serve a larger open-weight model with weft.",
        "Serve a larger model with weft.",
        "[why are you|how come you are] [so|] [small|dumb|stupid|limited|simple|bad]", "[can i|should i] use you [in production|for real work|for real|for my business|in my app]", f"{HOW} get [a better|a smarter|better|smarter] [model|answers]", "you are [not very smart|dumb|stupid|useless|bad|not smart|wrong|terrible|too small]", "you're [not very smart|dumb|stupid|useless|bad|wrong|terrible]", "are you [smart|intelligent|good|any good|useful]", "[is there a|do you have a] [bigger|larger|better|smarter] model",
    ),
    fact(
        "Python 3.11 or newer. scripts/serve sets up what weft needs.",
        "Python 3.11 or newer.",
        "[what|which] [python version|version of python|python] [do i need|does weft need|is needed|is required|does it need|should i use]", "[what are|list] the dependencies", f"{HOW} install [weft|it|this|the dependencies]", "[what do i have|what do i need] to install", "does [weft|it] need python",
    ),
]


def weft_question(draw: Draw) -> Episode:
    chosen = draw.choice(FACTS)
    wording = draw.choice(chosen.wordings)
    mark = "" if wording.endswith("]") and "?" in wording else END
    text = HELLO + wording + mark if draw.chance(0.75) else wording + "?"
    return Episode("weft", (Exchange(draw.say(text), chosen.answer, chosen.brief),))


MAKERS: list[tuple[float, Maker]] = [(6.0, weft_question)]
