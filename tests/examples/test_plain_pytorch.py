def test_it_learns_with_the_batch_alone_and_with_mined_images(example, capsys):
    recalls = example("plain_pytorch").main()
    assert recalls["untrained"] < 0.05
    assert recalls["the batch alone"] > 0.5
    assert recalls["with mined images"] > 0.5
    assert capsys.readouterr().out.count("refresh ") == 10
