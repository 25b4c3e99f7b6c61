def test_it_learns(example, capsys):
    before, after = example("plain_pytorch").main()
    assert before < 0.05
    assert after > 0.5
    assert capsys.readouterr().out.count("refresh ") == 10
