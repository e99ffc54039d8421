import pytest

from paratune.base.secrets import hide_in_words, hide_secrets


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("export WANDB_API_KEY=abc123", "export WANDB_API_KEY=***"),
        ("env: {HF_TOKEN: abc123, OMP_NUM_THREADS: 1}", "env: {HF_TOKEN: ***, OMP_NUM_THREADS: 1}"),
        ('password: "two words"\nseed: 1', "password: ***\nseed: 1"),
        ("#SBATCH --export=ALL,DB_PASSWORD=x,A=1", "#SBATCH --export=ALL,DB_PASSWORD=***,A=1"),
        ("tool --api-token abc --seed 1", "tool --api-token *** --seed 1"),
        ("https://me:hunter2@server.example/x", "https://me:***@server.example/x"),
        ("git+https://server.example:8080/x.git@v1", "git+https://server.example:8080/x.git@v1"),
        ("https://abc123@server.example/x", "https://***@server.example/x"),
        ("ssh://git@server.example/x", "ssh://git@server.example/x"),
        (
            "model: {name: demo:minilm, tokenizer: x}\nkeywords: a",
            "model: {name: demo:minilm, tokenizer: x}\nkeywords: a",
        ),
    ],
)
def test_values_of_secrets_are_hidden(text, shown):
    assert hide_secrets(text) == shown


def test_words_of_a_command_lose_their_secrets():
    assert hide_in_words(["--password=a,b}c", "DB_PASSWORD=my word", "--api-key=a;b"]) == [
        "--password=***",
        "DB_PASSWORD=***",
        "--api-key=***",
    ]
    words = ["train", "a.yaml", "--api-key", "abc", "--set", "x.password=abc", "--token", "--json"]
    assert hide_in_words(words) == [
        "train",
        "a.yaml",
        "--api-key",
        "***",
        "--set",
        "x.password=***",
        "--token",
        "--json",
    ]
