import torch


def _recall(texts: torch.Tensor, images: torch.Tensor, targets: torch.Tensor) -> float:
    return float(((texts @ images.T).argmax(1) == targets).double().mean())


def test_it_learns(example):
    from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg  # takes seconds, which only this test's worker pays

    module = example("open_clip_loop")
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = CLIP(
        embed_dim=16,
        vision_cfg=CLIPVisionCfg(layers=1, width=32, head_width=16, patch_size=8, image_size=16),
        text_cfg=CLIPTextCfg(context_length=6, vocab_size=64, width=32, heads=2, layers=1),
    )
    images = torch.randn(24, 3, 16, 16, generator=generator)
    targets = torch.arange(48) % 24
    # a caption names its image by two words; the largest id, 63, ends it, as open_clip's text tower expects
    captions = []
    for wording in (20, 21):
        for image in range(24):
            captions.append([1, 2 + image % 5, 10 + image // 5, wording, 63, 0])
    tokens = torch.tensor(captions)
    before = _recall(*module.embed(model, tokens, images, 16), targets)
    epochs = module.finetune(model, tokens, images, targets, strategy="top-k:k=12", epochs=25, lr=3e-3)
    assert before < 0.2
    assert _recall(*module.embed(model, tokens, images, 16), targets) > 0.6
    assert len(epochs) == 25
    assert epochs[-1]["hardness"] > epochs[0]["hardness"]
